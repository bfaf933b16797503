"""Makes tokens of Kerberos tickets for tests, a line of JSON for each line of JSON: another client than ours.

{"ccache", "service", "channel": hex or null, "mech": "spnego" or "krb5"} gives {"token": base64};
{"reply": base64} then gives {"proved": bool}. What goes wrong gives {"error"}.
"""

import base64
import json
import sys

import gssapi
from gssapi.raw import ChannelBindings

MECHS = {"spnego": "1.3.6.1.5.5.2", "krb5": "1.2.840.113554.1.2.2"}
MUTUAL = gssapi.RequirementFlag.mutual_authentication


def begin(asked):
    bindings = None
    if asked["channel"] is not None:
        bindings = ChannelBindings(application_data=b"tls-exporter:" + bytes.fromhex(asked["channel"]))
    context = gssapi.SecurityContext(
        name=gssapi.Name(asked["service"], gssapi.NameType.hostbased_service),
        creds=gssapi.Credentials(usage="initiate", store={"ccache": asked["ccache"]}),
        mech=gssapi.OID.from_int_seq(MECHS[asked["mech"]]),
        flags=[MUTUAL],
        channel_bindings=bindings,
        usage="initiate",
    )
    return context, {"token": base64.b64encode(context.step()).decode()}


def main():
    context = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "reply" in asked:
                context.step(base64.b64decode(asked["reply"]))
                said = {"proved": context.complete and bool(context.actual_flags & MUTUAL)}
            else:
                context, said = begin(asked)
        except gssapi.exceptions.GSSError as error:
            said = {"error": str(error)}
        print(json.dumps(said), flush=True)


main()
