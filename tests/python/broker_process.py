"""A real broker process."""

import os
import subprocess


class Broker:
    """One `headwater broker` process."""

    def __init__(self, *arguments, command=None):
        command = [*(command or [os.environ["HEADWATER_BIN"], "broker"]), "--listen", "127.0.0.1:0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        ready = self.process.stdout.readline()
        assert "ready" in ready, f"the broker did not become ready: {ready!r}"
        self.address = next(word for word in ready.split() if word.startswith("127.0.0.1:"))

    @property
    def connection_string(self):
        return (f"Endpoint=sb://{self.address};SharedAccessKeyName=RootManageSharedAccessKey;"
                "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;")

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=20)
