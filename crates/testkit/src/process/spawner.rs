//! Children that do not outlive the test, without unsafe code.
//!
//! `setpriv --pdeathsig` asks the kernel to kill the child when its parent *thread* ends. So every child is started by
//! one thread that lives as long as the process; a test's own thread would take its pods along when it ends.

use std::{
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command},
    sync::{LazyLock, mpsc},
    thread,
};

type Request = (Command, mpsc::Sender<io::Result<Child>>);

static SPAWNER: LazyLock<mpsc::Sender<Request>> = LazyLock::new(|| {
    let (requests, inbox) = mpsc::channel::<Request>();
    thread::Builder::new()
        .name("testkit-spawner".into())
        .spawn(move || {
            for (mut command, answer) in inbox {
                // A caller that has gone away needs no child; its parent's death takes it along.
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

/// `program`, wrapped so that it does not run on when we die.
pub(super) fn doomed_command(program: &Path) -> io::Result<Command> {
    // Asked here, because the wrapper starts well without it; a bare name is looked up on the PATH by the wrapper.
    if program.components().count() > 1 {
        program.metadata()?;
    }
    doomed_child_of(std::process::id(), program)
}

fn doomed_child_of(parent: u32, program: &Path) -> io::Result<Command> {
    let setpriv = ["/usr/bin/setpriv", "/bin/setpriv"].iter().find(|path| Path::new(path).exists());
    let setpriv = setpriv.ok_or_else(|| io::Error::other("setpriv (util-linux) is missing"))?;
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL", "--", "/bin/sh", "-c", UNLESS_ORPHANED]).arg(parent.to_string()).arg(program);
    // A group of its own: Ctrl-C reaches the test alone, and the kernel then ends its children.
    command.process_group(0);
    Ok(command)
}

pub(super) fn spawn(command: Command) -> io::Result<Child> {
    let (answer, child) = mpsc::channel();
    let gone = || io::Error::other("the spawning thread is gone");
    SPAWNER.send((command, answer)).map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says_hello_as_child_of(parent: u32) -> bool {
        let mut command = doomed_child_of(parent, Path::new("echo")).unwrap();
        let output = command.arg("hello").output().unwrap();
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
