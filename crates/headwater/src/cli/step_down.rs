//! `headwater step-down`: asks the leader to end its term, and waits for the next leader.

use std::time::Duration;

use anyhow::bail;
use lease::LeaseDocument;
use serde_json::json;
use tokio::time::Instant;

use super::shared_args::ConfigArgs;
use crate::connect::{self, COMMAND_TIMEOUT};
use crate::step_down_requests::{StepDownRequest, StepDownStore};
use crate::{operator_log, output};

const EXAMPLES: &str = "\
Examples:
  headwater step-down --within 1m
  kubectl exec pod-2 -- headwater step-down     before its node is drained";

/// Ask the leader to step down, and wait until another pod leads.
///
/// Use it to move leadership away from a pod or a node. The leader publishes what it has read, saves the checkpoint and releases the lease;
/// nothing is lost and nothing is published twice. It does not compete for the lease for a while, so that another pod gets it; if there is no
/// other pod, it leads again after that. All pods keep applying events meanwhile.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    /// How long to wait for the next leader
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_timeout)]
    within: Duration,

    /// Print JSON when it is done
    #[arg(long)]
    json: bool,
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("the timeout must be longer than 0; write, for example, `30s`".to_owned()),
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
    operator_log::record(&config, "step-down", &format!("{leader}, term {term}")).await;
    if !json {
        output::print_line(format_args!("requested: {leader} steps down from term {term}"))?;
    }
    while began.elapsed() < within {
        let now = lease.read_document().await?;
        if let Some(LeaseDocument { leader_id: Some(next), term: next_term, .. }) = now
            // The same pod may lead again, but only with a higher term.
            && next_term > term
        {
            let took = began.elapsed().as_secs_f64();
            if json {
                let (before, now) = (json!({ "leader": leader, "term": term.get() }), next_term.get());
                output::print_json(
                    &json!({ "before": before, "after": { "leader": next, "term": now }, "seconds": took }),
                )?;
            } else {
                output::print_line(format_args!("stepped down: {next} leads in term {next_term} after {took:.1} s"))?;
            }
            return Ok(());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    bail!(
        "no new leader after {}: {leader} still holds term {term}, or no other pod has taken over; check the pods with \
         `headwater status`; the request stays valid until the term ends",
        humantime::format_duration(within)
    )
}
