//! Children that do not outlive us, without unsafe code.
//!
//! `setpriv --pdeathsig` asks the kernel to signal the child when its parent *thread* ends. So every child is started by
//! one thread that lives as long as the process; a test's own thread or a runtime's worker would take its children along.
//! Where there is no `setpriv` (macOS) a child outlives a parent that is killed.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{LazyLock, mpsc};

use crate::server::LastWill;

const SETPRIV: [&str; 2] = ["/usr/bin/setpriv", "/bin/setpriv"];

type Request = (Command, mpsc::Sender<io::Result<Child>>);

static SPAWNER: LazyLock<mpsc::Sender<Request>> = LazyLock::new(|| {
    let (requests, inbox) = mpsc::channel::<Request>();
    std::thread::Builder::new()
        .name("child-spawner".into())
        .spawn(move || {
            for (mut command, answer) in inbox {
                // A caller that has gone away needs no child; dropping one leaves it to the last will.
                let _ = answer.send(command.spawn());
            }
        })
        .expect("a thread can be started");
    requests
});

/// Runs `$@`, unless the process that was to be the parent (`$0`) is gone already.
///
/// The kernel's promise holds from the moment it is asked for, some milliseconds after the fork. A parent that dies
/// before that is never noticed by it; but then the child has been given to another parent, which is noticed here.
const UNLESS_ORPHANED: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;

/// The command for `program`, wrapped so that the child gets its signal when we die. To be started with [`spawn`].
pub fn command(program: &Path, last_will: LastWill) -> Command {
    child_of(std::process::id(), program, last_will)
}

fn child_of(parent: u32, program: &Path, last_will: LastWill) -> Command {
    let mut command = match SETPRIV.iter().find(|path| Path::new(path).exists()) {
        None => Command::new(program),
        Some(setpriv) => {
            let signal = match last_will {
                LastWill::Kill => "KILL",
                LastWill::Terminate => "TERM",
            };
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", signal, "--", "/bin/sh", "-c", UNLESS_ORPHANED]);
            command.arg(parent.to_string()).arg(program);
            command
        }
    };
    // A group of its own: Ctrl-C in a terminal reaches us alone, and we stop our children in our order.
    command.process_group(0);
    command
}

/// Starts the child from the thread that never ends.
pub fn spawn(command: Command) -> io::Result<Child> {
    let (answer, child) = mpsc::channel();
    let gone = || io::Error::other("the spawning thread is gone");
    SPAWNER.send((command, answer)).map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says_hello_as_child_of(parent: u32) -> bool {
        let output = child_of(parent, Path::new("echo"), LastWill::Kill).arg("hello").output().unwrap();
        assert_eq!(output.status.success(), !output.stdout.is_empty());
        output.stdout == b"hello\n"
    }

    #[test]
    fn a_child_whose_parent_died_before_it_was_under_way_does_not_start() {
        assert!(says_hello_as_child_of(std::process::id()));
        let someone_else = 1;
        assert!(!says_hello_as_child_of(someone_else));
    }
}
