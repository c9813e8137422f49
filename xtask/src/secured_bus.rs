//! `cargo xtask test --secured-bus`: the end-to-end suites with a broker that requires TLS and keys.

use std::path::Path;

use anyhow::Context;

use crate::process::{cargo, run};

/// Every suite that takes its broker from `testkit`. The others start brokers of their own: `broker`, `servicebus`, `hostile` and the SDK suites test
/// the ports themselves, with and without TLS and keys; `dev` tests the plain bus of a developer's machine.
const SUITES: [&str; 8] = ["pod", "commands", "producer", "consumer", "soak", "session", "publish", "audit"];

/// Tests of those suites that need the plain bus, and why.
const PLAIN_BUS_TESTS: &[(&str, &str)] = &[(
    "check::filtering_and_unreadable_rules_are_found",
    "a proxy that does not speak TLS responds in place of the broker",
)];

pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    for (name, reason) in PLAIN_BUS_TESTS {
        println!("without {name}: {reason}");
    }
    let runtime = tokio::runtime::Runtime::new().context("failed to start a runtime")?;
    let (mongod, variables) = runtime.block_on(testkit::mongo::SharedMongoServer::start())?;
    let mut command = cargo(root, ["nextest", "run", "--workspace", "--locked", "--no-fail-fast"]);
    command.args(SUITES.map(|suite| ["--test", suite]).as_flattened()).args(["--filterset", &filterset()]);
    command.envs(variables).env("HEADWATER_TEST_SECURED_BUS", "1").env_remove("HEADWATER_MONGODB_URI");
    let result = run(&mut command);
    drop(mongod);
    result
}

fn filterset() -> String {
    let plain: Vec<_> = PLAIN_BUS_TESTS.iter().map(|(name, _)| format!("test(={name})")).collect();
    format!("not ({})", plain.join(" | "))
}
