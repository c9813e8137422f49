//! `headwater step-down`: the leader gives its term up, and another pod leads.

use std::time::Duration;

use anyhow::bail;
use lease::LeaseDocument;
use serde_json::json;
use tokio::time::Instant;

use super::run::ConfigArgs;
use crate::connect::{self, COMMAND_TIMEOUT};
use crate::output;
use crate::step_down::{StepDownRequest, StepDownStore};

const EXAMPLES: &str = "\
Examples:
  headwater step-down --within 1m
  kubectl exec pod-2 -- headwater step-down     before its node goes";

/// Ask the leading pod to give its term up, and wait until another leads.
///
/// For moving leadership away from a pod that is to be looked at, or from a node that is to go. The leader sends what it has read, saves the
/// checkpoint and gives the lease back; nothing is lost and nothing is published twice. It keeps away from the lease for a while, so
/// that another pod has it; where there is no other, it leads again after that. Every pod goes on applying events all the time.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    /// How long to wait for it.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_timeout)]
    within: Duration,

    /// As JSON, when it is done.
    #[arg(long)]
    json: bool,
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("nobody steps down in no time; write, for example, `30s`".to_owned()),
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let Args { config, within, json } = args;
    let config = config.load()?;
    let coordination = connect::coordination_database(&config, COMMAND_TIMEOUT).await?;
    let lease = connect::lease(&config).await?;
    let began = Instant::now();
    let step_down_store = StepDownStore::new(&coordination, &config.pipeline);
    let StepDownRequest { leader, term } = step_down_store.request_from_leader(&lease, &config.pod_id).await?;
    if !json {
        output::print_line(format_args!("{leader} is asked to give term {term} up"))?;
    }
    while began.elapsed() < within {
        let now = lease.read_document().await?;
        if let Some(LeaseDocument { leader_id: Some(next), term: next_term, .. }) = now
            && next_term > term
        {
            let took = began.elapsed().as_secs_f64();
            if json {
                let (before, now) = (json!({ "leader": leader, "term": term.get() }), next_term.get());
                output::print_line(format_args!(
                    "{:#}",
                    json!({ "before": before, "after": { "leader": next, "term": now }, "seconds": took })
                ))?;
            } else {
                output::print_line(format_args!("{next} leads in term {next_term} ({took:.1} s)"))?;
            }
            return Ok(());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    bail!(
        "{leader} still has term {term} after {}, or nobody has taken it; is that pod alive, and is there another? \
         `headwater status` tells; the request stands until the term ends",
        humantime::format_duration(within)
    )
}
