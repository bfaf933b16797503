"""The load generators that are compared: how each is told what to do, and what it says of itself.

A generator that cannot do a trial returns None for its command. Its own latencies are read from what it prints, in
milliseconds, as (p95, p99).
"""

import json
import os
import re
import shutil
from pathlib import Path

from .peers import TARGET, Plimsoll, first_line

BIN = TARGET / "peers" / "bin"


class Generator:
    """One program. `{url}` is where it sends to; times are in seconds."""

    name = ""
    flag = "--version"

    def program(self):
        found = shutil.which(self.name, path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
        return found and Path(found)

    def version(self):
        return first_line([self.program(), self.flag]) if self.flag else "Debian's"

    def closed(self, url, seconds, kept):
        """64 clients, each as fast as it is answered."""

    def open(self, url, seconds, rate, poisson, connections):
        """So many requests per second over kept connections."""

    def fresh(self, url, seconds, rate):
        """So many new connections per second."""

    def latencies(self, text):
        """(p95, p99) in milliseconds, as it reports them."""


class Ours(Generator):
    name = "plimsoll"

    def program(self):
        binary = Plimsoll().binary
        return binary if binary.exists() else None

    def closed(self, url, seconds, kept):
        return self.words(url, seconds, "--concurrency", 64, *([] if kept else ["--no-keepalive"]))

    def open(self, url, seconds, rate, poisson, connections):
        how = "poisson" if poisson else "constant"
        return self.words(url, seconds, "--rate", rate, "--arrival", how, "--connections", connections)

    def fresh(self, url, seconds, rate):
        return self.words(url, seconds, "--rate", rate, "--arrival", "constant", "--no-keepalive", "--timeout", "1s")

    def words(self, url, seconds, *more):
        return [self.program(), "load", url, "-q", "-o", "json", "--duration", f"{seconds}s", *more]

    def latencies(self, text):
        latency = json.loads(text)["latency_seconds"]
        return latency["p95"] * 1e3, latency["p99"] * 1e3


class Wrk(Generator):
    name, flag = "wrk", "-v"

    def closed(self, url, seconds, kept):
        return [self.program(), "-t1", "-c64", f"-d{seconds}s", *([] if kept else ["-H", "Connection: close"]), url]


class Wrk2(Generator):
    name, flag = "wrk2", "-v"

    def open(self, url, seconds, rate, poisson, connections):
        # It throws its first ten seconds away.
        if not poisson:
            return [self.program(), "-t1", f"-c{connections}", f"-d{seconds + 12}s", f"-R{rate}", "--latency", url]

    def latencies(self, text):
        return at_percentile(text, r"^ *9[59]\.\d*% +([0-9.]+)(us|ms|s)", 2)


class Ab(Generator):
    name, flag = "ab", "-V"

    def closed(self, url, seconds, kept):
        kept = ["-k"] if kept else []
        return [self.program(), "-q", "-c64", f"-t{seconds}", "-n", 10_000_000, *kept, url]


class Hey(Generator):
    name, flag = "hey", None

    def closed(self, url, seconds, kept):
        return [self.program(), "-c", 64, "-z", f"{seconds}s", *([] if kept else ["-disable-keepalive"]), url]

    def open(self, url, seconds, rate, poisson, connections):
        if not poisson:
            return [self.program(), "-c", connections, "-q", rate / connections, "-z", f"{seconds}s", url]

    def fresh(self, url, seconds, rate):
        each = rate / 512
        return [self.program(), "-c", 512, "-q", each, "-z", f"{seconds}s", "-t", 1, "-disable-keepalive", url]

    def latencies(self, text):
        found = re.findall(r"^ *(95|99)%+ in ([0-9.]+) secs", text, re.MULTILINE)
        return tuple(float(seconds) * 1e3 for _, seconds in found) if len(found) == 2 else None


class Oha(Generator):
    name = "oha"

    def closed(self, url, seconds, kept):
        return self.words(url, seconds, "-c", 64, *([] if kept else ["--disable-keepalive"]))

    def open(self, url, seconds, rate, poisson, connections):
        if not poisson:
            return self.words(url, seconds, "-c", connections, "-q", rate)

    def fresh(self, url, seconds, rate):
        more = ["--disable-keepalive", "-t", "1s", "--connect-timeout", "1s"]
        return self.words(url, seconds, "-c", 512, "-q", rate, *more)

    def words(self, url, seconds, *more):
        return [self.program(), "--no-tui", "--output-format", "json", "-z", f"{seconds}s", *more, url]

    def latencies(self, text):
        found = json.loads(text)["latencyPercentiles"]
        return found["p95"] * 1e3, found["p99"] * 1e3


class Fortio(Generator):
    name, flag = "fortio", "version"

    def closed(self, url, seconds, kept):
        return self.words(url, seconds, 0, "-c", 64, *([] if kept else ["-keepalive=false"]))

    def open(self, url, seconds, rate, poisson, connections):
        if not poisson:
            return self.words(url, seconds, rate, "-uniform", "-c", connections)

    def fresh(self, url, seconds, rate):
        return self.words(url, seconds, rate, "-uniform", "-c", 512, "-keepalive=false", "-timeout", "1s")

    def words(self, url, seconds, rate, *more):
        common = ["-quiet", "-allow-initial-errors", "-p", "95,99", "-json", "-", "-t", f"{seconds}s", "-qps", rate]
        return [self.program(), "load", *common, *more, url]

    def latencies(self, text):
        found = json.loads(text[text.index("{") :])["DurationHistogram"]["Percentiles"]
        return tuple(one["Value"] * 1e3 for one in found)


class K6(Generator):
    name, flag = "k6", "version"

    def closed(self, url, seconds, kept):
        return self.words(url, f"vus: 64, duration: '{seconds}s', noConnectionReuse: {str(not kept).lower()},")

    def open(self, url, seconds, rate, poisson, connections):
        if not poisson:
            return self.words(url, self.scenario(seconds, rate, connections, connections))

    def fresh(self, url, seconds, rate):
        return self.words(url, self.scenario(seconds, rate, 3000, 3000) + "noConnectionReuse: true,", "{timeout: '1s'}")

    def scenario(self, seconds, rate, some, most):
        return (
            f"scenarios: {{a: {{executor: 'constant-arrival-rate', rate: {rate}, timeUnit: '1s', duration: '{seconds}s', "
            f"preAllocatedVUs: {some}, maxVUs: {most}, gracefulStop: '2s'}}}},"
        )

    def words(self, url, options, params="{}"):
        script = TARGET / "bench" / "k6.js"
        script.write_text(
            "import http from 'k6/http';\n"
            f"export const options = {{{options} summaryTrendStats: ['p(95)', 'p(99)']}};\n"
            f"export default () => http.get('{url}', {params});\n"
        )
        return [self.program(), "run", "--quiet", "--no-usage-report", script]

    def latencies(self, text):
        found = re.search(r"http_req_duration.*?p\(95\)=([0-9.]+)(µs|ms|s) +p\(99\)=([0-9.]+)(µs|ms|s)", text)
        unit = {"µs": 1e-3, "ms": 1.0, "s": 1e3}
        return (float(found[1]) * unit[found[2]], float(found[3]) * unit[found[4]]) if found else None


def at_percentile(text, pattern, count):
    unit = {"us": 1e-3, "ms": 1.0, "s": 1e3}
    found = re.findall(pattern, text, re.MULTILINE)
    return tuple(float(value) * unit[name] for value, name in found[:count]) if len(found) >= count else None


ALL = {kind.name: kind for kind in (Ours, Wrk, Wrk2, Ab, Hey, Oha, Fortio, K6)}
