"""A certificate for the proxies that speak TLS: P-256, as most sites have now; made once below the target folder."""

import subprocess

from .process import HOST, Failed


def files(folder):
    """Paths of the certificate, its key, and both in one file as HAProxy wants them."""
    folder.mkdir(parents=True, exist_ok=True)
    certificate, key, both = folder / "web.pem", folder / "web.key", folder / "both.pem"
    if not both.exists():
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        command += ["-days", "30", "-subj", "/CN=bench", "-addext", f"subjectAltName=IP:{HOST}"]
        done = subprocess.run([*command, "-keyout", key, "-out", certificate], capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise Failed(f"openssl makes no certificate:\n{done.stderr}")
        part = folder / "both.part"
        part.write_bytes(certificate.read_bytes() + key.read_bytes())
        part.replace(both)
    return certificate, key, both
