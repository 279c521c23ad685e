"""An authority of a test's own that signs certificates, and what connects with them. Nothing of it is kept."""
import shutil
import ssl
import subprocess

OPENSSL = shutil.which("openssl")


class Authority:
    """Makes FOLDER/ca.crt, and NAME.crt and NAME.key for each name asked for."""

    CONFIG = """[ca]
default_ca = this
[this]
database = index
serial = serial
new_certs_dir = .
certificate = ca.crt
private_key = ca.key
default_md = sha256
policy = any
unique_subject = no
copy_extensions = copy
[any]
commonName = supplied
"""

    def __init__(self, folder, name="ca"):
        self.folder = folder
        folder.mkdir()
        (folder / "config").write_text(self.CONFIG)
        (folder / "index").touch()
        (folder / "serial").write_text("01")
        self.run("req", "-x509", *self.new_key("ca"), "-out", "ca.crt", "-days", "2", "-subj", f"/CN={name}")
        self.ca = folder / "ca.crt"

    def run(self, *args):
        done = subprocess.run([OPENSSL, *args], cwd=self.folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(f"openssl {' '.join(args)}\n{done.stderr}")

    @staticmethod
    def new_key(name):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key"]

    def sign(self, name, names="", expired=False):
        """(certificate, key) with the common name `name` and these subject alternative names ("DNS:a,URI:b")."""
        extension = ["-addext", f"subjectAltName={names}"] if names else []
        self.run("req", *self.new_key(name), "-out", f"{name}.csr", "-subj", f"/CN={name}", *extension)
        times = ["-startdate", "20200101000000Z", "-enddate", "20200102000000Z"] if expired else ["-days", "1"]
        self.run("ca", "-batch", "-config", "config", "-in", f"{name}.csr", "-out", f"{name}.crt", "-notext", *times)
        (self.folder / f"{name}.key").chmod(0o600)
        return self.folder / f"{name}.crt", self.folder / f"{name}.key"


def tls_context(authority, pair=None):
    """Of a client that speaks HTTP/2, with a certificate or without."""
    context = ssl.create_default_context(cafile=authority.ca)
    context.set_alpn_protocols(["h2"])
    if pair is not None:
        context.load_cert_chain(*pair)
    return context
