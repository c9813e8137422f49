//! Runs `examples/projection.rs` as its reader would: the program built next to this one.

use std::time::Duration;

use pipeline::failpoints::Failpoint;
use testkit::process::{OutputStream, Program};

/// It may have to start its own MongoDB on a busy machine.
const SOON: Duration = Duration::from_secs(90);

/// Two days of sales, coffee for four and tea for three in turn.
const SALES: [&str; 4] = [
    r#"{ "_id": { "day": "2026-11-15", "product": "coffee" }, "count": 2, "revenue": 8 }"#,
    r#"{ "_id": { "day": "2026-11-15", "product": "tea" }, "count": 2, "revenue": 6 }"#,
    r#"{ "_id": { "day": "2026-11-16", "product": "coffee" }, "count": 1, "revenue": 4 }"#,
    r#"{ "_id": { "day": "2026-11-16", "product": "tea" }, "count": 1, "revenue": 3 }"#,
];

/// Its output: two deliveries of the same six events, then the read model.
async fn printed(environment: Option<(&str, &str)>) -> Vec<String> {
    let beside =
        std::env::current_exe().ok().and_then(|path| Some(path.parent()?.parent()?.join("examples/projection")));
    let path = beside.expect("a test program is in `deps`, next to `examples`");
    // Building one test target does not build the examples.
    assert!(path.exists(), "the example is not built; run `cargo build --workspace --example projection`");
    let program = environment.into_iter().fold(Program::new(path), |program, (name, value)| program.env(name, value));
    let example = program.start().unwrap();
    let status = example.wait_for_exit(SOON).await;
    assert!(status.success(), "{status}\n{}", example.tail());
    let output = example.lines().into_iter().filter(|line| line.stream == OutputStream::Stdout);
    output.map(|line| line.text).collect()
}

#[tokio::test]
async fn the_projection_example_counts_redelivered_sales_once() {
    let lines = printed(None).await;
    let all_of = |outcome: &str| format!("[{}]", [outcome; 6].join(", "));
    let deliveries =
        [format!("first delivery:  {}", all_of("Applied")), format!("second delivery: {}", all_of("Duplicate"))];
    assert_eq!(lines[..2], deliveries);
    assert_eq!(lines[2..], SALES);
}

#[tokio::test]
async fn without_the_cursor_check_the_example_counts_every_sale_twice() {
    let lines = printed(Some((Failpoint::VARIABLE, "NoCursorCheck"))).await;
    assert!(lines[2].ends_with(r#""count": 4, "revenue": 16 }"#), "{lines:#?}");
}
