/* Binds to a member, renews and releases, and prints where it is.
 *
 *     lease URL GROUP KEY TIMES */

#include <plimsoll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fails(int code, const char *what)
{
    fprintf(stderr, "%s: %d %s: %s\n", what, code, plimsoll_error(code), plimsoll_message());
    return 1;
}

int main(int argc, char **argv)
{
    plimsoll_lease *lease, *other;
    plimsoll_member member, again;
    int code, moved, times;

    if (argc != 5)
        return 2;
    code = plimsoll_bind(argv[1], argv[2], argv[3], 30, &lease, &member);
    if (code != PLIMSOLL_OK)
        return fails(code, "bind");
    if (plimsoll_seconds(lease) != 30 || plimsoll_seconds(NULL) != -1)
        return 30;
    puts(member.text);
    for (times = atoi(argv[4]); times > 0; times--) {
        code = plimsoll_renew(lease, 0, &moved, &again);
        if (code != PLIMSOLL_OK)
            return fails(code, "renew");
        if (moved || strcmp(member.text, again.text) != 0)
            return 31;
    }
    /* Who comes again gets the same; who could not reach it another. */
    code = plimsoll_bind(argv[1], argv[2], argv[3], 0, &other, &again);
    if (code != PLIMSOLL_OK)
        return fails(code, "bind again");
    if (plimsoll_seconds(other) != 60 || strcmp(member.text, again.text) != 0)
        return 32;
    code = plimsoll_renew(other, 1, &moved, &again);
    if (code != PLIMSOLL_OK)
        return fails(code, "leave");
    if (!moved || strcmp(member.text, again.text) == 0 || again.number != 0)
        return 33;
    puts(again.text);
    if (plimsoll_release(other) != PLIMSOLL_OK || plimsoll_release(lease) != PLIMSOLL_OK
        || plimsoll_release(NULL) != PLIMSOLL_OK)
        return 34;

    /* What is wrong has a code and a message. */
    if (plimsoll_bind(argv[1], "mail", NULL, 0, &lease, &member) != PLIMSOLL_UNKNOWN || lease != NULL
        || strstr(plimsoll_message(), "there are") == NULL)
        return 35;
    if (plimsoll_bind("http://127.0.0.1:1", argv[2], NULL, 0, &lease, &member) != PLIMSOLL_SILENCE)
        return 36;
    if (plimsoll_bind("127.0.0.1:1", argv[2], NULL, 0, &lease, &member) != PLIMSOLL_USAGE
        || plimsoll_bind(argv[1], NULL, NULL, 0, &lease, &member) != PLIMSOLL_USAGE
        || plimsoll_bind(argv[1], argv[2], NULL, -1, &lease, &member) != PLIMSOLL_USAGE
        || plimsoll_bind(argv[1], argv[2], NULL, 0, NULL, &member) != PLIMSOLL_USAGE
        || plimsoll_renew(NULL, 0, &moved, &member) != PLIMSOLL_USAGE)
        return 37;
    return 0;
}
