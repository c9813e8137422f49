//! Child processes that do not outlive this process, without unsafe code.
//!
//! `setpriv --pdeathsig` makes the kernel signal the child when its parent *thread* ends. So one thread that lives as long as the
//! process starts every child; the end of a test's thread or of a runtime's worker would kill its children.
//! Without `setpriv` (macOS), a child outlives a parent that is killed.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{LazyLock, mpsc};

use crate::server::ParentDeathSignal;

const SETPRIV: [&str; 2] = ["/usr/bin/setpriv", "/bin/setpriv"];

type SpawnRequest = (Command, mpsc::Sender<io::Result<Child>>);

static SPAWNER: LazyLock<mpsc::Sender<SpawnRequest>> = LazyLock::new(|| {
    let (requests, inbox) = mpsc::channel::<SpawnRequest>();
    std::thread::Builder::new()
        .name("child-spawner".into())
        .spawn(move || {
            for (mut command, reply) in inbox {
                // A caller that is gone needs no child; a dropped child gets its signal when this process ends.
                let _ = reply.send(command.spawn());
            }
        })
        .expect("a thread can be started");
    requests
});

/// Runs `$@`, unless the expected parent (`$0`) is already gone.
///
/// The kernel sends the signal only if the parent ends after the request, some milliseconds after the fork. If the parent ends
/// before, the child has another parent by now; the script checks that.
const UNLESS_ORPHANED: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;

/// The command for `program`, wrapped so that the child gets a signal when this process ends. Start it with [`spawn`].
pub fn command(program: &Path, parent_death_signal: ParentDeathSignal) -> Command {
    child_of(std::process::id(), program, parent_death_signal)
}

fn child_of(parent: u32, program: &Path, parent_death_signal: ParentDeathSignal) -> Command {
    let mut command = match SETPRIV.iter().find(|path| Path::new(path).exists()) {
        None => Command::new(program),
        Some(setpriv) => {
            let signal = match parent_death_signal {
                ParentDeathSignal::Kill => "KILL",
                ParentDeathSignal::Terminate => "TERM",
            };
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", signal, "--", "/bin/sh", "-c", UNLESS_ORPHANED]);
            command.arg(parent.to_string()).arg(program);
            command
        }
    };
    // Its own process group: Ctrl-C in a terminal reaches only this process, which stops its children in order.
    command.process_group(0);
    command
}

/// Starts the child from the spawner thread.
pub fn spawn(command: Command) -> io::Result<Child> {
    let (reply, child) = mpsc::channel();
    let gone = || io::Error::other("the spawner thread is gone");
    SPAWNER.send((command, reply)).map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs_as_child_of(parent: u32) -> bool {
        let output = child_of(parent, Path::new("echo"), ParentDeathSignal::Kill).arg("hello").output().unwrap();
        assert_eq!(output.status.success(), !output.stdout.is_empty());
        output.stdout == b"hello\n"
    }

    #[test]
    fn a_child_whose_parent_is_gone_does_not_start() {
        assert!(runs_as_child_of(std::process::id()));
        let another_process = 1;
        assert!(!runs_as_child_of(another_process));
    }
}
