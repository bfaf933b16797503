/* Everything that a program can do wrong and that can be seen has a code and a message, and changes nothing.
 *
 *     wrong DAEMONS KEYS BAD_KEYS SILENT_DAEMON */

#include <plimsoll.h>
#include <stdio.h>
#include <string.h>

static int line_failed;

/* The code is this one, and the message has this in it. */
#define EXPECT(call, code, words) \
    do { \
        int got = (call); \
        if (got != (code) || strstr(plimsoll_message(), (words)) == NULL) { \
            fprintf(stderr, "%d: %s: %d \"%s\"\n", __LINE__, #call, got, plimsoll_message()); \
            line_failed = 1; \
        } \
    } while (0)

int main(int argc, char **argv)
{
    plimsoll_options options = PLIMSOLL_OPTIONS;
    plimsoll_options zeros;
    plimsoll_client *client = NULL, *other;
    plimsoll_answer answer, before;
    unsigned char info[PLIMSOLL_INFO + 1];
    char not_text[] = { (char) 0xff, 0 };
    void *context;

    if (argc != 5)
        return 2;
    memset(&zeros, 0, sizeof zeros);
    memset(info, 1, sizeof info);
    memset(&answer, 7, sizeof answer);
    before = answer;

    if (plimsoll_message()[0] != 0 || strchr(plimsoll_version(), '.') == NULL)
        return 30;
    plimsoll_close(NULL);
    EXPECT(plimsoll_open(NULL, &client), PLIMSOLL_USAGE, "no options");
    EXPECT(plimsoll_open(&options, NULL), PLIMSOLL_USAGE, "no room for the client");
    EXPECT(plimsoll_open(&zeros, &client), PLIMSOLL_USAGE, "PLIMSOLL_OPTIONS");
    EXPECT(plimsoll_open(&options, &client), PLIMSOLL_USAGE, "no file of keys");
    options.keys = argv[2];
    EXPECT(plimsoll_open(&options, &client), PLIMSOLL_USAGE, "no daemon to ask");
    options.daemons = "127.0.0.1";
    EXPECT(plimsoll_open(&options, &client), PLIMSOLL_LOOK_UP, "`127.0.0.1`");
    options.daemons = not_text;
    EXPECT(plimsoll_open(&options, &client), PLIMSOLL_USAGE, "UTF-8");
    options.daemons = argv[1];
    options.keys = "/there/is/no/such/file";
    EXPECT(plimsoll_open(&options, &client), PLIMSOLL_KEYS, "cannot be read");
    options.keys = argv[3];
    EXPECT(plimsoll_open(&options, &client), PLIMSOLL_KEYS, "line 1");
    options.keys = argv[2];
    options.multicast = "10.0.0.1:7447";
    EXPECT(plimsoll_open(&options, &client), PLIMSOLL_USAGE, "10.0.0.1 is not a multicast address");
    options.multicast = "239.255.74.47";
    EXPECT(plimsoll_open(&options, &client), PLIMSOLL_USAGE, "not ADDRESS:PORT");
    options.multicast = NULL;
    options.multicast_if = "lo";
    EXPECT(plimsoll_open(&options, &client), PLIMSOLL_USAGE, "interface");
    options.multicast_if = NULL;
    options.attempts = 256;
    EXPECT(plimsoll_open(&options, &client), PLIMSOLL_USAGE, "255");
    /* Which take minutes: daemons that stand still for a while are waited for. */
    options.attempts = 255;
    if (client != NULL)
        return 31;
    if (plimsoll_open(&options, &client) != PLIMSOLL_OK || client == NULL)
        return 32;

    EXPECT(plimsoll_pick(NULL, "web", &answer), PLIMSOLL_USAGE, "no client");
    EXPECT(plimsoll_pick(client, NULL, &answer), PLIMSOLL_USAGE, "no service");
    EXPECT(plimsoll_pick(client, "", &answer), PLIMSOLL_USAGE, "empty");
    EXPECT(plimsoll_pick(client, "id:web", &answer), PLIMSOLL_USAGE, "number");
    EXPECT(plimsoll_pick(client, "web", NULL), PLIMSOLL_USAGE, "no room for the answer");
    EXPECT(plimsoll_pick_with(client, "web", info, sizeof info, &answer), PLIMSOLL_USAGE, "1000 bytes");
    EXPECT(plimsoll_pick_with(client, "web", NULL, 1, &answer), PLIMSOLL_USAGE, "missing");
    EXPECT(plimsoll_ask(NULL, "web", NULL, 0, NULL), PLIMSOLL_USAGE, "no client");
    EXPECT(plimsoll_failed(NULL, 1), PLIMSOLL_USAGE, "no client");
    EXPECT(plimsoll_process(NULL), PLIMSOLL_USAGE, "no client");
    EXPECT(plimsoll_next(NULL, &context, &answer), PLIMSOLL_USAGE, "no client");
    EXPECT(plimsoll_next(client, NULL, &answer), PLIMSOLL_USAGE, "no room");
    EXPECT(plimsoll_pick(client, "mail", &answer), PLIMSOLL_UNKNOWN, "no member offers it");
    if (plimsoll_fd(NULL) != -1 || plimsoll_timeout_ms(NULL) != -1 || memcmp(&answer, &before, sizeof answer) != 0)
        return 33;

    options.daemons = argv[4];
    options.attempts = 0;
    if (plimsoll_open(&options, &other) != PLIMSOLL_OK)
        return 34;
    EXPECT(plimsoll_pick(other, "web", &answer), PLIMSOLL_SILENCE, "no daemon answered");
    plimsoll_close(other);

    /* Information comes as far as there is room. */
    if (plimsoll_pick_with(client, "web", info, PLIMSOLL_INFO, &answer) != PLIMSOLL_OK)
        return 35;
    /* What was asked for and not waited for is given back. */
    if (plimsoll_ask(client, "web", info, 3, info) != PLIMSOLL_OK)
        return 36;
    plimsoll_close(client);
    return line_failed;
}
