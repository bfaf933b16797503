/* Asks much at once from an event loop, and prints whom it got. Each context comes back once.
 *
 *     loop SERVICE DAEMONS KEYS TIMES */

#include <plimsoll.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 1000

/* What the program knows of a request. */
struct question {
    int number;
    int answered;
};

int main(int argc, char **argv)
{
    static struct question questions[MOST];
    plimsoll_options options = PLIMSOLL_OPTIONS;
    plimsoll_client *client;
    plimsoll_answer answer;
    struct pollfd ready;
    void *context;
    int times, number, answered = 0, code;

    if (argc != 5 || (times = atoi(argv[4])) > MOST)
        return 2;
    options.daemons = argv[2];
    options.keys = argv[3];
    /* Which take minutes: daemons that stand still for a while are waited for. */
    options.attempts = 255;
    if (plimsoll_open(&options, &client) != PLIMSOLL_OK) {
        fprintf(stderr, "%s\n", plimsoll_message());
        return 2;
    }
    if (plimsoll_timeout_ms(client) != -1 || plimsoll_next(client, &context, &answer) != PLIMSOLL_NOTHING)
        return 30;
    for (number = 0; number < times; number++) {
        questions[number].number = number;
        if (plimsoll_ask(client, argv[1], &number, sizeof number, &questions[number]) != PLIMSOLL_OK)
            return 31;
    }
    ready.fd = plimsoll_fd(client);
    ready.events = POLLIN;
    while (answered < times) {
        int wait = plimsoll_timeout_ms(client);

        if (wait < 0)
            return 32;
        if (poll(&ready, 1, wait) < 0)
            return 33;
        plimsoll_process(client);
        while ((code = plimsoll_next(client, &context, &answer)) != PLIMSOLL_NOTHING) {
            struct question *question = (struct question *) context;

            if (code != PLIMSOLL_OK) {
                fprintf(stderr, "%d %s: %s\n", code, plimsoll_error(code), plimsoll_message());
                return code;
            }
            if (question < questions || question >= questions + MOST || question->answered++)
                return 34;
            puts(answer.member.text);
            answered++;
        }
        if (context != NULL)
            return 35;
    }
    if (plimsoll_timeout_ms(client) != -1)
        return 36;
    plimsoll_close(client);
    return 0;
}
