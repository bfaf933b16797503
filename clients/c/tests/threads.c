/* Picks from several threads at once with one client, and prints whom.
 *
 *     threads SERVICE DAEMONS KEYS THREADS TIMES */

#include <plimsoll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define MOST 64

static plimsoll_client *client;
static const char *service;
static int times;

static void *picks(void *argument)
{
    plimsoll_answer answer;
    int turn;
    size_t other;

    (void) argument;
    for (turn = 0; turn < times; turn++) {
        int code = plimsoll_pick(client, service, &answer);

        if (code != PLIMSOLL_OK) {
            fprintf(stderr, "%d %s: %s\n", code, plimsoll_error(code), plimsoll_message());
            exit(code);
        }
        if (answer.member.address.ss_family != AF_INET && answer.member.address.ss_family != AF_INET6)
            exit(30);
        for (other = 0; other < answer.further_len; other++)
            if (answer.further[other].number == answer.member.number || answer.further[other].text[0] == 0)
                exit(31);
        puts(answer.member.text);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    plimsoll_options options = PLIMSOLL_OPTIONS;
    pthread_t threads[MOST];
    int count, thread;

    if (argc != 6 || (count = atoi(argv[4])) > MOST)
        return 2;
    service = argv[1];
    options.daemons = argv[2];
    options.keys = argv[3];
    /* Which take minutes: daemons that stand still for a while are waited for. */
    options.attempts = 255;
    times = atoi(argv[5]);
    if (plimsoll_open(&options, &client) != PLIMSOLL_OK) {
        fprintf(stderr, "%s\n", plimsoll_message());
        return 2;
    }
    for (thread = 0; thread < count; thread++)
        if (pthread_create(&threads[thread], NULL, picks, NULL) != 0)
            return 32;
    for (thread = 0; thread < count; thread++)
        if (pthread_join(threads[thread], NULL) != 0)
            return 33;
    plimsoll_close(client);
    return 0;
}
