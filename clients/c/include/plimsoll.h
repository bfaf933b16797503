/* plimsoll.h: ask the daemons of a lottery who serves.
 *
 *     plimsoll_options options = PLIMSOLL_OPTIONS;
 *     plimsoll_client *client;
 *     plimsoll_answer answer;
 *
 *     options.daemons = "10.0.0.1:7447,10.0.0.2:7447";
 *     options.keys = "lottery.keys";
 *     if (plimsoll_open(&options, &client) != PLIMSOLL_OK)
 *         errx(1, "%s", plimsoll_message());
 *     if (plimsoll_pick(client, "web", &answer) == PLIMSOLL_OK)
 *         puts(answer.member.text);
 *     plimsoll_close(client);
 *
 * Link with `pkg-config --cflags --libs plimsoll`.
 *
 * A client may be used by any number of threads at once, but for plimsoll_close, which is for the last of them. It has no
 * thread of its own, and takes no memory that the program would have to give back. A process that forks opens another client
 * in the child. Signals are left alone.
 *
 * What can fail gives a code: PLIMSOLL_OK is 0, all others are not. plimsoll_message() then says more.
 */
#ifndef PLIMSOLL_H
#define PLIMSOLL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What came of a call. New codes may come: whatever is not known is a failure. */
enum {
    PLIMSOLL_OK = 0,
    /* Who serves could not be found out: */
    PLIMSOLL_SILENCE = 1,  /* no daemon answered, or no balancer */
    PLIMSOLL_BUSY = 2,     /* no member can serve it now */
    PLIMSOLL_UNKNOWN = 3,  /* no member offers it */
    PLIMSOLL_DRAINING = 4, /* all members that offer it are going */
    PLIMSOLL_TOO_MANY = 5, /* too many requests are on their way, or too many answers were not taken */
    /* plimsoll_next only: */
    PLIMSOLL_NOTHING = 6, /* nothing has come */
    /* The call itself was in vain: */
    PLIMSOLL_USAGE = 16,   /* an argument cannot be what it is */
    PLIMSOLL_KEYS = 17,    /* the file of keys cannot be read, or has something else in it */
    PLIMSOLL_LOOK_UP = 18, /* no daemon's name is known */
    PLIMSOLL_SYSTEM = 19,  /* the system gives no socket */
    PLIMSOLL_BUG = 20      /* a fault of the library: please report it */
};

/* Most bytes of information that go with a request or an answer. */
#define PLIMSOLL_INFO 1000
/* Most members that follow the one picked. */
#define PLIMSOLL_FURTHER 4
/* Bytes that an address takes as text, the last one 0. */
#define PLIMSOLL_TEXT 64

/* A client. */
typedef struct plimsoll_client plimsoll_client;

/* Whom to ask, and how. Begin with PLIMSOLL_OPTIONS: what is 0 or NULL is as if it were not there. */
typedef struct plimsoll_options {
    size_t size;             /* of this structure: later versions may have more */
    const char *daemons;     /* to begin with: "HOST:PORT,HOST:PORT"; one that is known is enough */
    const char *keys;        /* file of the cluster's keys, or of those for clients; read again when it changes */
    const char *multicast;   /* group and port by which all are reached at once: "239.255.74.47:7447" */
    const char *multicast_if; /* address (IPv4) of the interface for that, if it is not the one that the routes say */
    unsigned lottery;        /* not 0: ask all at once, who draw among themselves; else one, who refers */
    unsigned attempts;       /* how often to ask before giving up, to 255; 0 for 8, which take 1.3 s at the longest */
} plimsoll_options;

#define PLIMSOLL_OPTIONS { sizeof(plimsoll_options), NULL, NULL, NULL, NULL, 0, 0 }

/* A member of the cluster. */
typedef struct plimsoll_member {
    struct sockaddr_storage address; /* where it serves: for connect() */
    socklen_t address_len;
    uint16_t number;                 /* for plimsoll_failed() */
    char text[PLIMSOLL_TEXT];        /* the address: "10.0.0.1:80", "[2001:db8::1]:80" */
} plimsoll_member;

/* Who is to serve. */
typedef struct plimsoll_answer {
    plimsoll_member member;
    plimsoll_member further[PLIMSOLL_FURTHER]; /* to try if it does not do, best first */
    size_t further_len;                        /* how many there are */
    size_t info_len;
    unsigned char info[PLIMSOLL_INFO];         /* what its application says to the client's */
} plimsoll_answer;

/* Opens a client. Looks names up and reads the keys, and sends nothing. *client is NULL if it fails. */
int plimsoll_open(const plimsoll_options *options, plimsoll_client **client);

/* Ends a client. NULL is none. */
void plimsoll_close(plimsoll_client *client);

/* Waits for the member that is to serve. A service is known by its name, or by its number as "id:NUMBER". An answer that its
 * daemon allows to be used again is, for its time. *answer is whole if the code is PLIMSOLL_OK, and else as it was. */
int plimsoll_pick(plimsoll_client *client, const char *service, plimsoll_answer *answer);

/* The same, with information for the daemons' applications. */
int plimsoll_pick_with(plimsoll_client *client, const char *service, const void *info, size_t info_len,
                       plimsoll_answer *answer);

/* A member that was picked failed: not that one again for five seconds. */
int plimsoll_failed(plimsoll_client *client, uint16_t member);

/* For event loops. None of these waits.
 *
 * Ask with a context of your own. When plimsoll_fd() is readable, or plimsoll_timeout_ms() is over: plimsoll_process(). Then
 * plimsoll_next() until PLIMSOLL_NOTHING, also after plimsoll_ask(): an answer may be there at once. */
int plimsoll_ask(plimsoll_client *client, const char *service, const void *info, size_t info_len, void *context);

/* A descriptor to wait for with poll, epoll or select, for reading only; the client's own, the same all its life. -1 for NULL. */
int plimsoll_fd(const plimsoll_client *client);

/* Milliseconds until plimsoll_process() is to be called at the latest; -1 if nothing is waited for. */
int plimsoll_timeout_ms(const plimsoll_client *client);

/* Takes what has come, and asks again what got no answer in time. */
int plimsoll_process(plimsoll_client *client);

/* What came of one that was asked for: the code and the answer that plimsoll_pick() would give, with the context. *context is
 * NULL if there is PLIMSOLL_NOTHING. */
int plimsoll_next(plimsoll_client *client, void **context, plimsoll_answer *answer);

/* A member of a balancer's group, lent: for programs that go there themselves (docs/guide/lookaside.md). No daemon is asked,
 * and no client is needed. Each call waits for the balancer's answer, 5 s at the longest. A lease is for one thread at a time. */
typedef struct plimsoll_lease plimsoll_lease;

/* A member, and a lease of it for so many seconds (1 to 3600; 0 for a minute). url is where the balancer takes reports:
 * "http://10.0.0.9:9901". key says who the program is, so that it gets the member that belongs to the key or that it has already;
 * NULL for nobody. *lease is NULL if it fails; a member's number is 0. PLIMSOLL_UNKNOWN: there is no such group;
 * PLIMSOLL_BUSY: no member can take one more. */
int plimsoll_bind(const char *url, const char *group, const char *key, int seconds, plimsoll_lease **lease,
                  plimsoll_member *member);

/* Prolongs a lease, to be done before it ends. *moved is not 0 if the program is to go to another member; *member is where it is to
 * be. failed is not 0 if the member could not be reached. PLIMSOLL_UNKNOWN: it has ended; release it and bind again. */
int plimsoll_renew(plimsoll_lease *lease, int failed, int *moved, plimsoll_member *member);

/* For how many seconds it was given or last renewed; -1 for NULL. */
int plimsoll_seconds(const plimsoll_lease *lease);

/* Ends a lease, and gives its memory back whatever the code is. NULL is none. */
int plimsoll_release(plimsoll_lease *lease);

/* A code in words. */
const char *plimsoll_error(int code);

/* What the last call of this thread that failed was about, until the next one that does. Never NULL. */
const char *plimsoll_message(void);

/* The version of the library: "0.1.0". */
const char *plimsoll_version(void);

#ifdef __cplusplus
}
#endif

#endif
