//! Child processes: signals, captured output, and their end with the test.

use std::{os::unix::process::ExitStatusExt, panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use testkit::{
    process::{OutputStream, Process, Program},
    wait::wait_for,
};

const LIMIT: Duration = Duration::from_secs(20);

fn shell(script: &str) -> Process {
    Program::new("/bin/sh").named("child").args(["-c", script]).start().unwrap()
}

/// Prints "tick" a hundred times a second.
fn ticking() -> Process {
    shell("while :; do echo tick; sleep 0.01; done")
}

fn ticks(process: &Process) -> usize {
    process.lines().len()
}

async fn wait_for_ticks(process: &Process, more: usize) {
    let goal = ticks(process) + more;
    wait_for("ticks", LIMIT, async || if ticks(process) >= goal { Ok(()) } else { Err(ticks(process)) }).await;
}

/// Whether the process runs. A zombie does not.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    // The state follows the name, which is in brackets and may hold anything.
    stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X'])))
}

async fn wait_until_dead(pid: u32) {
    wait_for("the process to be dead", LIMIT, async || if lives(pid) { Err("it lives") } else { Ok(()) }).await;
}

/// The message with which `future` panics.
async fn panic_of(future: impl Future) -> String {
    let Err(panic) = AssertUnwindSafe(future).catch_unwind().await else { panic!("it does not panic") };
    *panic.downcast::<String>().expect("a formatted message")
}

#[tokio::test]
async fn arguments_environment_and_both_streams_arrive() {
    let child = Program::new("/bin/sh")
        .args(["-c", r#"echo "$0 $GREETING"; echo problem >&2; exit 3"#, "first"])
        .env("GREETING", "hello")
        .start()
        .unwrap();
    assert_eq!(child.wait_for_exit(LIMIT).await.code(), Some(3));
    let mut lines: Vec<_> = child.lines().into_iter().map(|line| (line.stream, line.text)).collect();
    lines.sort_by_key(|(stream, _)| *stream == OutputStream::Stderr);
    assert_eq!(lines, [(OutputStream::Stdout, "first hello".into()), (OutputStream::Stderr, "problem".into())]);
}

#[tokio::test]
async fn a_line_is_found_whether_it_has_come_or_is_to_come() {
    let child = shell("echo one; sleep 0.2; echo two; exec sleep 60");
    assert_eq!(child.wait_for_line("two", LIMIT).await.number, 1);
    assert_eq!(child.wait_for_line("one", LIMIT).await.number, 0);
}

#[tokio::test]
async fn a_mark_hides_the_lines_before_it() {
    let child = shell(r#"trap "echo again" TERM; echo again; while :; do sleep 0.01; done"#);
    let first = child.wait_for_line("again", LIMIT).await;
    let mark = child.mark();
    child.terminate();
    let second = child.wait_for_line_from(mark, "again", LIMIT).await;
    assert!(second.number > first.number);
}

#[tokio::test]
async fn a_missing_line_fails_with_the_output_so_far() {
    let child = shell("echo something else; exec sleep 60");
    child.wait_for_line("something else", LIMIT).await;
    let message = panic_of(child.wait_for_line("ready", Duration::from_millis(50))).await;
    assert!(message.contains("for a line with `ready`"), "{message}");
    assert!(message.contains("last state \"1 lines\""), "{message}");
    assert!(message.ends_with("its last lines:\n  out | something else\n"), "{message}");
}

#[tokio::test]
async fn a_line_that_can_no_longer_come_fails_at_once() {
    let child = shell("echo cannot open the door >&2; exit 1");
    let message = panic_of(child.wait_for_line("ready", LIMIT * 100)).await;
    assert!(message.contains("its output ended without a line with `ready`"), "{message}");
    assert!(message.contains("err | cannot open the door"), "{message}");
}

#[tokio::test]
async fn sigterm_lets_it_shut_down() {
    let child = shell(r#"trap "echo bye; exit 7" TERM; echo ready; while :; do sleep 0.01; done"#);
    child.wait_for_line("ready", LIMIT).await;
    child.terminate();
    assert_eq!(child.wait_for_exit(LIMIT).await.code(), Some(7));
    child.wait_for_line("bye", LIMIT).await;
}

#[tokio::test]
async fn sigkill_ends_it_without_shutdown() {
    let child = shell(r#"trap "echo bye; exit 7" TERM INT HUP EXIT; echo ready; while :; do sleep 0.01; done"#);
    child.wait_for_line("ready", LIMIT).await;
    assert_eq!(child.kill().await.signal(), Some(9));
    assert!(!lives(child.pid()));
    assert_eq!(child.lines().len(), 1, "no last words");
}

#[tokio::test]
async fn a_paused_process_does_nothing_until_it_is_resumed() {
    let (paused, control) = (ticking(), ticking());
    wait_for_ticks(&paused, 3).await;
    paused.pause().await;
    // Earlier output may still be in flight; the other child's ticks serve as the clock.
    wait_for_ticks(&control, 10).await;
    let line_count = ticks(&paused);
    wait_for_ticks(&control, 30).await;
    assert_eq!(ticks(&paused), line_count);
    assert_eq!(paused.exit_status(), None, "it still exists");
    paused.resume();
    wait_for_ticks(&paused, 3).await;
}

#[tokio::test]
async fn a_paused_process_can_be_paused_again_and_killed() {
    let child = ticking();
    for _ in 0..3 {
        child.pause().await;
        child.resume();
        wait_for_ticks(&child, 2).await;
    }
    child.pause().await;
    assert_eq!(child.kill().await.signal(), Some(9));
}

#[tokio::test]
async fn signalling_an_ended_process_panics() {
    let child = shell("echo done");
    child.wait_for_exit(LIMIT).await;
    let message = panic_of(async { child.terminate() }).await;
    assert!(message.contains("cannot send SIGTERM"), "{message}");
}

#[tokio::test]
async fn a_process_that_does_not_end_is_reported_with_its_output() {
    let child = shell("echo busy; exec sleep 60");
    child.wait_for_line("busy", LIMIT).await;
    let message = panic_of(child.wait_for_exit(Duration::from_millis(50))).await;
    assert!(message.contains("for the process to end") && message.contains("out | busy"), "{message}");
}

#[tokio::test]
async fn a_dropped_process_is_dead() {
    let child = ticking();
    let pid = child.pid();
    assert!(lives(pid));
    drop(child);
    assert!(!lives(pid));
}

#[test]
fn a_process_outlives_the_thread_that_started_it() {
    let wait_for_ten_ticks = |child: &Process| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(wait_for_ticks(child, 10));
    };
    let starter = std::thread::spawn(move || {
        let child = ticking();
        // Only after the child has started: before that it would not notice its parent's end.
        wait_for_ten_ticks(&child);
        child
    });
    wait_for_ten_ticks(&starter.join().unwrap());
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let error = Program::new("/no/such/program").named("pod-1").start().expect_err("there is none");
    assert_eq!(error.to_string(), "failed to start `pod-1` from `/no/such/program`");
}

const ROLE: &str = "TESTKIT_PROCESS_TEST_ROLE";

/// Has two roles: started again by itself, it is the parent that is killed.
#[tokio::test]
async fn a_child_dies_with_its_test_even_on_kill_9() {
    if std::env::var_os(ROLE).is_some() {
        let child = shell("exec sleep 600");
        println!("child is {}", child.pid());
        return std::future::pending().await;
    }
    // Not `current_exe`: that names a file, which a build beside this test may have replaced.
    let parent = Program::new(format!("/proc/{}/exe", std::process::id()))
        .args(["a_child_dies_with_its_test_even_on_kill_9", "--exact", "--nocapture"])
        .env(ROLE, "parent")
        .start()
        .unwrap();
    let line = parent.wait_for_line("child is ", LIMIT).await.text;
    let pid = line.rsplit(' ').next().and_then(|pid| pid.parse().ok()).expect("the line ends with a pid");
    assert!(lives(pid));
    parent.kill().await;
    wait_until_dead(pid).await;
}
