//! The end-to-end suites on another bus: `cargo xtask test --secured-bus` with a broker that requires TLS and keys, `--profile NAME` with one that does to
//! its clients what Azure Service Bus does.

use std::path::Path;

use anyhow::Context;

use crate::process::{cargo, run};

/// Every suite that takes its broker from `testkit`. The others start brokers of their own: `broker`, `servicebus`, `hostile` and the SDK suites test
/// the ports themselves, with and without TLS and keys; `dev` tests the plain bus of a developer's machine.
const SUITES: [&str; 8] = ["pod", "commands", "producer", "consumer", "soak", "session", "publish", "audit"];

/// A test that cannot run on another bus, and why.
type ExcludedTest = (&'static str, &'static str);

const PLAIN_BUS_TESTS: &[ExcludedTest] = &[(
    "check::filtering_and_unreadable_rules_are_found",
    "a proxy that does not speak TLS responds in place of the broker",
)];

/// Tests that measure or count what a profile changes on purpose.
const PROFILE_TESTS: &[ExcludedTest] = &[];

/// The profiles of `headwater broker`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Profile {
    AzureStandard,
    AzurePremium,
    Harsh,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::AzureStandard => "azure-standard",
            Self::AzurePremium => "azure-premium",
            Self::Harsh => "harsh",
        }
    }
}

pub(crate) fn check_secured(root: &Path) -> anyhow::Result<()> {
    run_suites(root, &[("HEADWATER_TEST_SECURED_BUS", "1".to_owned())], PLAIN_BUS_TESTS)
}

pub(crate) fn check_profile(root: &Path, profile: Profile, scale: f64) -> anyhow::Result<()> {
    println!("profile {}, times divided by {scale}", profile.name());
    let variable = format!("{}/{scale}", profile.name());
    run_suites(root, &[("HEADWATER_TEST_BUS_PROFILE", variable)], PROFILE_TESTS)
}

fn run_suites(root: &Path, variables: &[(&str, String)], excluded: &[ExcludedTest]) -> anyhow::Result<()> {
    for (name, reason) in excluded {
        println!("without {name}: {reason}");
    }
    let runtime = tokio::runtime::Runtime::new().context("failed to start a runtime")?;
    let (mongod, mongo_variables) = runtime.block_on(testkit::mongo::SharedMongoServer::start())?;
    let mut command = cargo(root, ["nextest", "run", "--workspace", "--locked", "--no-fail-fast"]);
    command.args(SUITES.map(|suite| ["--test", suite]).as_flattened());
    command.args(["--filterset", &filterset(excluded)]);
    command.envs(mongo_variables).envs(variables.iter().cloned()).env_remove("HEADWATER_MONGODB_URI");
    let result = run(&mut command);
    drop(mongod);
    result
}

fn filterset(excluded: &[ExcludedTest]) -> String {
    let names: Vec<_> = excluded.iter().map(|(name, _)| format!("test(={name})")).collect();
    if names.is_empty() { "all()".to_owned() } else { format!("not ({})", names.join(" | ")) }
}
