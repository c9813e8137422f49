//! `headwater dev` as a person meets it: the built program, a real mongod, real pods, signals.

use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use mongodb::bson::{Document, doc};
use mongodb::{Client, Database};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testkit::process::{Process, Program};
use testkit::wait::wait_for;

/// A cold cache is filled first; that took a quarter of a minute on a good line.
const READY_WITHIN: Duration = Duration::from_secs(180);
const SOON: Duration = Duration::from_secs(60);
/// What is under way may take its minute, and processes their time to stop; then `dev` itself says what was wrong.
const ENDED_WITHIN: Duration = Duration::from_secs(120);

fn headwater(arguments: &[&str]) -> Process {
    Program::new(env!("CARGO_BIN_EXE_headwater")).args(arguments).start().unwrap()
}

fn dev(data_dir: &Path, more: &[&str]) -> Process {
    let arguments = ["dev", "--data-dir", data_dir.to_str().unwrap()];
    headwater(&[&arguments, more].concat())
}

async fn uri_of(dev: &Process) -> String {
    let line = dev.wait_for_line("MongoDB:   ", READY_WITHIN).await.text;
    line.trim_start_matches("MongoDB:").trim().to_owned()
}

async fn database(uri: &str, name: &str) -> Database {
    Client::with_uri_str(uri).await.unwrap().database(name)
}

/// Waits until this read model has so many documents.
async fn grown(views: &Database, model: &str, to: u64) {
    let model = views.collection::<Document>(model);
    wait_for("the read model to grow", SOON, async || match model.count_documents(doc! {}).await {
        Ok(count) if count >= to => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

async fn count(views: &Database, model: &str) -> u64 {
    views.collection::<Document>(model).count_documents(doc! {}).await.unwrap()
}

/// Pod and pid of the last line that says who leads.
fn leader(line: &str) -> (String, i32) {
    let (pod, rest) = line.split_once(" (pid ").unwrap_or_else(|| panic!("no leader in `{line}`"));
    (pod.to_owned(), rest.split(')').next().unwrap().parse().unwrap())
}

/// What the page that people read first shows of a start, without what differs from one to the next.
fn is_as_the_readme_shows(dev: &Process) {
    let readme = include_str!("../../../README.md");
    let shown = readme.split("```\n").find(|block| block.starts_with("MongoDB:")).expect("the README shows a start");
    let word = |line: &str| line.split_once(':').map_or(line, |(label, _)| label).to_owned();
    let labels = |line: &&str| !line.is_empty() && !line.starts_with(' ');
    // After these lines comes how it goes.
    let expected: Vec<_> =
        shown.lines().filter(labels).map(word).take_while(|line| !line.contains(" leads, ")).collect();
    let said: Vec<_> = dev.lines().into_iter().map(|line| line.text).collect();
    let from = said.iter().position(|line| line.starts_with("MongoDB:")).expect("it says where MongoDB is");
    let said = said[from..].iter().map(String::as_str).filter(labels).map(word);
    assert_eq!(said.take(expected.len()).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn orders_flow_a_killed_leader_is_replaced_and_nothing_is_lost_over_two_runs() {
    let folder = tempfile::tempdir().unwrap();
    let first = dev(folder.path(), &["--pods", "2", "--rate", "50"]);
    let uri = uri_of(&first).await;
    let views = database(&uri, "shop_views").await;
    grown(&views, "order_summary", 20).await;
    let config = folder.path().join("headwater.yaml");
    let check = headwater(&["check", "--config", config.to_str().unwrap()]);
    assert!(check.wait_for_exit(SOON).await.success());
    check.wait_for_line("all is well", SOON).await;

    let (pod, pid) = leader(&first.wait_for_line(" leads, in term ", SOON).await.text);
    is_as_the_readme_shows(&first);
    let token = first.wait_for_line("to act from it: ", SOON).await.text;
    let token = token.trim_start().trim_start_matches("to act from it: ").to_owned();
    assert_eq!(std::fs::read_to_string(folder.path().join("token")).unwrap(), token);
    assert!(std::fs::read_to_string(&config).unwrap().contains(&token), "pods know it");
    let mark = first.mark();
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    first.wait_for_line_from(mark, &format!("{pod} (pid {pid}) was killed by signal 9"), SOON).await;
    let (next, _) = leader(&first.wait_for_line_from(mark, " leads, in term ", SOON).await.text);
    assert_ne!(next, pod, "another pod leads");
    let before = count(&views, "order_summary").await;
    grown(&views, "order_summary", before + 20).await;
    first.wait_for_line_from(mark, &format!("{pod} is back"), SOON).await;

    first.terminate();
    assert!(first.wait_for_exit(ENDED_WITHIN).await.success(), "{}", first.tail());
    first.wait_for_line("Check: nothing was lost", SOON).await;
    first.wait_for_line("Stopped; the data is in", SOON).await;

    let second = dev(folder.path(), &["--pods", "2", "--rate", "50"]);
    assert_eq!(uri_of(&second).await, uri);
    let views = database(&uri, "shop_views").await;
    let found = count(&views, "order_summary").await;
    assert!(found >= before + 20, "{found} orders of {before} are left");
    grown(&views, "order_summary", found + 10).await;
    second.terminate();
    assert!(second.wait_for_exit(ENDED_WITHIN).await.success(), "{}", second.tail());
    second.wait_for_line("Check: nothing was lost", SOON).await;
}

/// What `dev` says it took until every address was there.
async fn took(dev: &Process) -> f64 {
    let line = dev.wait_for_line("everything is up (", READY_WITHIN).await.text;
    let seconds = line.split('(').nth(1).and_then(|rest| rest.split(' ').next());
    seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or_else(|| panic!("no time in `{line}`"))
}

#[tokio::test]
async fn a_second_start_takes_less_than_three_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let round = async || {
        let dev = dev(folder.path(), &["--pods", "3", "--rate", "20"]);
        let took = took(&dev).await;
        dev.terminate();
        assert!(dev.wait_for_exit(ENDED_WITHIN).await.success(), "{}", dev.tail());
        took
    };
    let first = round().await;
    // Machines are shared. One of three must do; where even that is too slow, the first start says how slow the machine is: it does the same,
    // and makes the replica set besides.
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        best = best.min(round().await);
        if best < 3.0 {
            return;
        }
    }
    assert!(best < first, "the first start took {first} s, the best of three others {best} s");
}

/// Processes that were started for this folder.
fn left(folder: &Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let commands = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    let commands = commands.map(|command| String::from_utf8_lossy(&command).replace('\0', " "));
    commands.filter(|command| command.contains(folder.to_str().unwrap())).collect()
}

#[tokio::test]
async fn ctrl_c_stops_everything_in_order_and_checks_that_nothing_was_lost() {
    let folder = tempfile::tempdir().unwrap();
    let dev = dev(folder.path(), &["--pods", "2", "--rate", "50"]);
    let views = database(&uri_of(&dev).await, "shop_views").await;
    grown(&views, "order_summary", 20).await;
    // This one, two pods, the broker and mongod.
    assert!(left(folder.path()).len() >= 5, "{:?}", left(folder.path()));
    // As a terminal does it: to the whole group.
    kill(Pid::from_raw(-i32::try_from(dev.pid()).unwrap()), Signal::SIGINT).unwrap();
    let status = dev.wait_for_exit(ENDED_WITHIN).await;
    assert_eq!(status.code(), Some(0), "{}", dev.tail());
    dev.wait_for_line("Check: nothing was lost", SOON).await;
    dev.wait_for_line("Stopped; the data is in", SOON).await;
    assert_eq!(left(folder.path()), Vec::<String>::new());
    for log in ["pod-1", "pod-2"] {
        let said = std::fs::read_to_string(folder.path().join("logs").join(format!("{log}.log"))).unwrap();
        assert!(said.contains("\"stopped\""), "{log} ended in its order:\n{said}");
    }
}

#[tokio::test]
async fn a_read_model_that_lacks_something_is_found_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let dev = dev(folder.path(), &["--pods", "1", "--rate", "50"]);
    let views = database(&uri_of(&dev).await, "shop_views").await;
    grown(&views, "products", 4).await;
    views.collection::<Document>("products").delete_one(doc! {}).await.unwrap();
    let change = doc! { "$inc": { "orders": 1 } };
    views.collection::<Document>("customers").update_one(doc! {}, change).await.unwrap();
    dev.terminate();
    assert!(!dev.wait_for_exit(ENDED_WITHIN).await.success());
    let check = dev.wait_for_line("Check: read models differ", SOON).await.text;
    assert!(check.contains("in `customers`") && check.contains("in `products`"), "{check}");
}

#[tokio::test]
async fn a_killed_dev_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let dev = dev(folder.path(), &["--pods", "2"]);
    let uri = uri_of(&dev).await;
    let address = uri.trim_start_matches("mongodb://").split('/').next().unwrap();
    TcpStream::connect(address).expect("it listens");
    let bus = dev.wait_for_line("Bus: ", SOON).await.text;
    let bus = bus.split("sb://").nth(1).unwrap().split(';').next().unwrap();
    TcpStream::connect(bus).expect("it listens");
    let pods = dev.wait_for_line("Pods: ", SOON).await.text;
    let pids: Vec<i32> =
        pods.split("(pid ").skip(1).map(|rest| rest.split(')').next().unwrap().parse().unwrap()).collect();
    assert_eq!(pids.len(), 2);
    dev.kill().await;
    for address in [address, bus] {
        wait_for("it to end", SOON, async || match TcpStream::connect(address) {
            Err(_) => Ok(()),
            Ok(_) => Err(format!("{address} still listens")),
        })
        .await;
    }
    for pid in pids {
        wait_for("a pod to end", SOON, async || match kill(Pid::from_raw(pid), None) {
            Err(_) => Ok(()),
            Ok(()) => Err(format!("{pid} is still there")),
        })
        .await;
    }
}

#[tokio::test]
async fn a_data_folder_in_use_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let first = dev(folder.path(), &["--pods", "1", "--rate", "0"]);
    uri_of(&first).await;
    let second = dev(folder.path(), &[]);
    assert!(!second.wait_for_exit(SOON).await.success());
    second.wait_for_line("pass --data-dir", SOON).await;
}

#[tokio::test]
async fn a_given_mongodb_is_used_in_databases_of_its_own_and_left_running() {
    let shared = testkit::mongo::shared().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let dev = dev(folder.path(), &["--mongodb-uri", shared.uri(), "--pods", "1"]);
    dev.wait_for_line("yours", SOON).await;
    let name = std::fs::read_to_string(folder.path().join("database")).unwrap();
    assert!(name.starts_with("shop_"), "{name}");
    let views = database(shared.uri(), &format!("{name}_views")).await;
    grown(&views, "order_summary", 3).await;
    dev.terminate();
    assert!(dev.wait_for_exit(ENDED_WITHIN).await.success(), "{}", dev.tail());
    dev.wait_for_line("Check: nothing was lost", SOON).await;
    for name in [name.clone(), format!("{name}_views"), format!("{name}_headwater")] {
        database(shared.uri(), &name).await.drop().await.expect("it still runs");
    }
}

#[tokio::test]
async fn a_password_in_a_given_uri_is_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let uri = "mongodb://someone:open-sesame@127.0.0.1:1/?serverSelectionTimeoutMS=200";
    let dev = dev(folder.path(), &["--mongodb-uri", uri]);
    assert!(!dev.wait_for_exit(SOON).await.success());
    let said: String = dev.lines().iter().map(|line| format!("{line}\n")).collect();
    assert!(said.contains("reach MongoDB at 127.0.0.1:1"), "{said}");
    assert!(!said.contains("open-sesame"), "{said}");
}

#[tokio::test]
async fn the_version_and_the_help_are_there() {
    let version = headwater(&["--version"]);
    assert!(version.wait_for_exit(SOON).await.success());
    version.wait_for_line(env!("CARGO_PKG_VERSION"), SOON).await;
    let help = headwater(&["dev", "--help"]);
    assert!(help.wait_for_exit(SOON).await.success());
    help.wait_for_line("HEADWATER_MONGODB_URI", SOON).await;
}
