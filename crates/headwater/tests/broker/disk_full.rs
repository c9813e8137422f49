//! A full disk: sends are refused with the right error, everything else works, and no accepted message is lost.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use servicebus::{BusErrorKind, Client, Message, ReceivedMessage};
use testkit::process::{Process, Program};
use testkit::wait::wait_for;

use crate::fixture::{BINARY, BrokerFixture, SOON};

/// Space for two log segments and the reserve for settlements.
const MEBIBYTES: u32 = 120;
const LARGE: usize = 512 << 10;

/// A small file system, mounted in its own mount namespace; unmounted on drop.
struct LimitedDisk {
    mounted: Process,
    folder: tempfile::TempDir,
}

impl LimitedDisk {
    async fn of(mebibytes: u32) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mount = format!("mount -t tmpfs -o size={mebibytes}m disk \"$0\" && echo mounted && exec sleep 3600");
        let mounted = Program::new("unshare")
            .args(["--mount", "--map-root-user", "sh", "-c", &mount])
            .args([folder.path()])
            .start()
            .expect("unshare is there");
        mounted.wait_for_line("mounted", SOON).await;
        Self { mounted, folder }
    }

    async fn broker(&self) -> BrokerFixture {
        let namespaces = Path::new("/proc").join(self.mounted.pid().to_string()).join("ns");
        let option = |name: &str, kind: &str| format!("--{name}={}", namespaces.join(kind).display());
        let program = Program::new("nsenter")
            .args([option("user", "user"), option("mount", "mnt")])
            .args(["--preserve-credentials", "--", BINARY, "broker", "--data-dir"])
            .args([self.folder.path().join("data")]);
        BrokerFixture::of(program, tempfile::tempdir().expect("a temporary folder")).await
    }

    /// The path of a file on it, from outside the namespace.
    fn file(&self, name: &str) -> PathBuf {
        let root = Path::new("/proc").join(self.mounted.pid().to_string()).join("root");
        root.join(self.folder.path().strip_prefix("/").expect("an absolute path")).join(name)
    }
}

fn body(number: u32) -> Vec<u8> {
    let mut body = number.to_be_bytes().to_vec();
    body.resize(LARGE, 7);
    body
}

fn number(message: &ReceivedMessage) -> u32 {
    u32::from_be_bytes(message.body()[..4].try_into().expect("a whole body"))
}

/// Sends until the disk is full; returns the accepted messages.
async fn fill(client: &Client, queue: &str, from: u32) -> BTreeSet<u32> {
    let sender = client.sender(queue);
    let mut accepted = BTreeSet::new();
    for number in from..from + 1_000 {
        match sender.send_message(&Message::new(body(number))).await {
            Ok(()) => drop(accepted.insert(number)),
            Err(error) => {
                assert_eq!(error.kind(), BusErrorKind::QuotaExceeded, "{error}");
                let detail = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                assert!(detail.contains("disk is full"), "{detail}");
                return accepted;
            }
        }
    }
    panic!("the disk was never full");
}

/// Receives and completes up to this many messages.
async fn take(client: &Client, queue: &str, most: usize) -> BTreeSet<u32> {
    let mut receiver = client.receiver(queue);
    let mut taken = BTreeSet::new();
    while taken.len() < most {
        let messages = receiver.receive(most - taken.len(), Duration::from_secs(2)).await.expect("a receive");
        if messages.is_empty() {
            break;
        }
        receiver.settler().expect("it received").complete(&messages).await.expect("settlements are let through");
        taken.extend(messages.iter().map(number));
    }
    taken
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_sends_serves_on_and_loses_nothing() {
    // GIVEN a broker whose disk is filled up
    let disk = LimitedDisk::of(MEBIBYTES).await;
    let fixture = disk.broker().await;
    fixture.queue("q", "").await;
    fixture.queue("small", "").await;
    let client = fixture.client();
    client.sender("small").send_message(&Message::new("from before")).await.expect("a send");
    let mut left = fill(&client, "q", 0).await;
    println!("{} messages of 512 KiB on a disk of {MEBIBYTES} MiB", left.len());
    assert!(left.len() > 50);
    // THEN senders get the error, and receivers are still served
    let again = client.sender("small").send_message(&Message::new("now")).await.expect_err("there is no room");
    assert_eq!(again.kind(), BusErrorKind::QuotaExceeded, "{again}");
    let health = fixture.http("GET", "/health", "", b"").await;
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    for number in take(&client, "q", 3).await {
        assert!(left.remove(&number), "{number} was never accepted");
    }
    // WHEN it is killed, THEN it starts on the full disk, and everything is there that was accepted and not completed
    fixture.broker.kill().await;
    drop(fixture);
    let fixture = disk.broker().await;
    let client = fixture.client();
    let taken = take(&client, "q", left.len()).await;
    assert_eq!(taken, left);
    // AND since consumed messages free space, it accepts messages again
    let sent = wait_for("room", SOON, async || {
        client.sender("q").send_message(&Message::new(body(5_000))).await.map_err(|error| error.kind())
    });
    sent.await;
    assert_eq!(take(&client, "q", 1).await, BTreeSet::from([5_000]));
    let mut small = client.receiver("small");
    let kept = small.receive(10, SOON).await.expect("a receive");
    assert_eq!(kept.iter().map(|message| message.body().clone()).collect::<Vec<_>>(), ["from before"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sends_resume_when_other_files_free_space() {
    // GIVEN a disk that something else has filled
    let disk = LimitedDisk::of(MEBIBYTES).await;
    let fixture = disk.broker().await;
    fixture.queue("q", "").await;
    let client = fixture.client();
    client.sender("q").send_message(&Message::new(body(0))).await.expect("a send");
    let filler = disk.file("filler");
    let mut written = std::fs::File::create(&filler).expect("a file");
    while std::io::Write::write_all(&mut written, &[0; 1 << 20]).is_ok() {}
    let mut accepted = fill(&client, "q", 1).await;
    accepted.insert(0);
    // WHEN that is removed
    std::fs::remove_file(&filler).expect("it is there");
    drop(written);
    // THEN the same sender is served again, without a restart, and nothing is missing
    let sender = client.sender("q");
    wait_for("room", SOON, async || {
        sender.send_message(&Message::new(body(5_000))).await.map_err(|error| error.kind())
    })
    .await;
    accepted.insert(5_000);
    assert_eq!(take(&client, "q", accepted.len()).await, accepted);
}
