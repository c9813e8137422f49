//! Children that do not outlive us, without unsafe code.
//!
//! `setpriv --pdeathsig` asks the kernel to signal the child when its parent *thread* ends. So every child is started by
//! one thread that lives as long as the process; a test's own thread or a runtime's worker would take the server along.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{LazyLock, mpsc};

use super::config::LastWill;

const SETPRIV: [&str; 2] = ["/usr/bin/setpriv", "/bin/setpriv"];

type Request = (Command, mpsc::Sender<io::Result<Child>>);

static SPAWNER: LazyLock<mpsc::Sender<Request>> = LazyLock::new(|| {
    let (requests, inbox) = mpsc::channel::<Request>();
    std::thread::Builder::new()
        .name("mongod-spawner".into())
        .spawn(move || {
            for (mut command, answer) in inbox {
                // A caller that has gone away needs no child; dropping one leaves it to the last will.
                let _ = answer.send(command.spawn());
            }
        })
        .expect("a thread can be started");
    requests
});

/// The command for `program`, wrapped so that the child gets its signal when we die.
pub(super) fn command_with_last_will(program: &Path, last_will: LastWill) -> Command {
    let mut command = match SETPRIV.iter().find(|path| Path::new(path).exists()) {
        None => Command::new(program),
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            let signal = match last_will {
                LastWill::Kill => "KILL",
                LastWill::Terminate => "TERM",
            };
            command.args(["--pdeathsig", signal, "--"]).arg(program);
            command
        }
    };
    // A group of its own: Ctrl-C in a terminal reaches us alone, and we stop the server in our order.
    command.process_group(0);
    command
}

pub(super) fn spawn(command: Command) -> io::Result<Child> {
    let (answer, child) = mpsc::channel();
    let gone = || io::Error::other("the spawning thread is gone");
    SPAWNER.send((command, answer)).map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}
