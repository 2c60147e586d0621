"""Makes authorities and certificates for a test, by openssl, in harness.SCRATCH."""

import subprocess

import grpc

import harness


def openssl(*args: str):
    subprocess.run(["openssl", *args], check=True, capture_output=True, cwd=harness.SCRATCH)


def make_authority(name: str):
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")


def make_certificate(name: str, authority: str, named: bool = True):
    names = "DNS:localhost,IP:127.0.0.1" if name == "server" else f"DNS:{name}"
    subject = ("-subj", f"/CN={name}", "-addext", f"subjectAltName={names}") if named else ("-subj", "/O=Nobody")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", *subject,
            "-keyout", f"{name}.key", "-out", f"{name}.csr")
    openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
            "-CAcreateserial", "-days", "2", "-copy_extensions", "copy", "-out", f"{name}.pem")


def path(name: str) -> str:
    return str(harness.SCRATCH / name)


def credentials(client: str = "", authority: str = "authority"):
    """The credentials of a client that trusts `authority` and presents the certificate of `client`."""
    def read(name):
        return (harness.SCRATCH / name).read_bytes()

    return grpc.ssl_channel_credentials(read(f"{authority}.pem"), read(f"{client}.key") if client else None,
                                        read(f"{client}.pem") if client else None)


SERVER_TLS = ("--tls_cert", "server.pem", "--tls_key", "server.key")


def server_tls(*more: str) -> list[str]:
    """The flags of a server with certificates, and `more`, by their names."""
    return [path(word) if word.endswith((".pem", ".key")) else word for word in (*SERVER_TLS, *more)]
