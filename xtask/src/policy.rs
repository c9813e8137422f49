//! The dependency policy of deny.toml, held against the graph cargo resolves: licences, bans, duplicates, sources.
//!
//! Why not cargo-deny itself: building it takes minutes of every cold run, and its advisory database cannot be fetched
//! where the gate runs. The file keeps its format, so whoever has it can run it too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use anyhow::{Context, bail};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, PackageId};
use serde::Deserialize;

#[derive(Deserialize)]
struct Policy {
    licenses: Licenses,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    skip: Vec<Skip>,
    deny: Vec<Ban>,
}

/// A second version that is tolerated.
#[derive(Deserialize)]
struct Skip {
    name: String,
    #[serde(default)]
    reason: String,
}

#[derive(Deserialize)]
struct Ban {
    name: String,
    reason: String,
}

/// What was looked at, for the line a person reads.
pub(crate) struct Report {
    packages: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} packages: licences, bans, duplicates and sources as deny.toml wants them", self.packages)
    }
}

pub(crate) fn check(root: &Path) -> anyhow::Result<Report> {
    let text = std::fs::read_to_string(root.join("deny.toml")).context("read deny.toml")?;
    let policy: Policy = toml::from_str(&text).context("parse deny.toml")?;
    let metadata = graph(root)?;
    let (shipped, all) = (reached(&metadata, false), reached(&metadata, true));
    let faults = faults(&policy, &shipped, &all);
    if !faults.is_empty() {
        bail!("the dependency policy is broken:\n  {}", faults.join("\n  "));
    }
    Ok(Report { packages: all.len() })
}

/// The graph as it is built on Linux: what only other systems build is not fetched for this.
fn graph(root: &Path) -> anyhow::Result<Metadata> {
    let options = ["--filter-platform", "x86_64-unknown-linux-gnu", "--locked"].map(str::to_owned);
    let mut command = MetadataCommand::new();
    command.current_dir(root).other_options(options.to_vec()).exec().context("ask cargo for the dependency graph")
}

/// Every broken rule, one line each. Bans and duplicates look at what is shipped; licences and sources at everything.
fn faults(policy: &Policy, shipped: &[&Package], all: &[&Package]) -> Vec<String> {
    let mut faults = Vec::new();
    for package in all {
        faults.extend(license_fault(policy, package));
        if package.source.as_ref().is_some_and(|source| !source.is_crates_io()) {
            faults.push(format!("{} {}: comes neither from the registry nor from here", package.name, package.version));
        }
    }
    for package in shipped {
        if let Some(ban) = policy.bans.deny.iter().find(|ban| ban.name == *package.name) {
            faults.push(format!("{}: banned: {}", package.name, ban.reason));
        }
    }
    let mut versions: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for package in shipped {
        versions.entry(&package.name).or_default().insert(package.version.to_string());
    }
    versions.retain(|_, versions| versions.len() > 1);
    for skip in &policy.bans.skip {
        if skip.reason.is_empty() {
            faults.push(format!("deny.toml: skip of `{}` gives no reason", skip.name));
        }
        if versions.remove(skip.name.as_str()).is_none() {
            faults.push(format!("deny.toml: skip of `{}` is no longer needed: remove it", skip.name));
        }
    }
    for (name, versions) in versions {
        let versions: Vec<_> = versions.into_iter().collect();
        faults.push(format!("{name}: built in {} versions: {}", versions.len(), versions.join(", ")));
    }
    faults
}

fn license_fault(policy: &Policy, package: &Package) -> Option<String> {
    let named = || format!("{} {}", package.name, package.version);
    let Some(license) = &package.license else { return Some(format!("{}: names no licence", named())) };
    let expression = match spdx::Expression::parse_mode(license, spdx::ParseMode::LAX) {
        Ok(expression) => expression,
        Err(error) => return Some(format!("{}: licence `{license}` cannot be read: {}", named(), error.reason)),
    };
    let allowed = |requirement: &spdx::LicenseReq| policy.licenses.allow.contains(&requirement.to_string());
    (!expression.evaluate(allowed)).then(|| format!("{}: licence `{license}` is not on the list", named()))
}

/// The packages cargo would really build for us: following normal and build edges, and with `dev` those of tests too.
fn reached(metadata: &Metadata, dev: bool) -> Vec<&Package> {
    let resolve = metadata.resolve.as_ref().expect("cargo metadata resolves unless told not to");
    let nodes: BTreeMap<&PackageId, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    // What only the repository's own commands and tests use is not shipped.
    let roots = metadata.workspace_packages();
    let mut waiting: Vec<&PackageId> =
        roots.iter().filter(|package| dev || *package.name == "headwater").map(|package| &package.id).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if !seen.insert(id) {
            continue;
        }
        let wanted = |kind: DependencyKind| dev || kind != DependencyKind::Development;
        let edges = nodes[id].deps.iter().filter(|edge| edge.dep_kinds.iter().any(|kind| wanted(kind.kind)));
        waiting.extend(edges.map(|edge| &edge.pkg));
    }
    metadata.packages.iter().filter(|package| seen.contains(&package.id)).collect()
}

#[cfg(test)]
mod tests {
    use super::{Bans, Licenses, Policy, faults, graph, reached};

    fn lines(policy: &Policy) -> Vec<String> {
        let metadata = graph(&crate::steps::workspace_root()).expect("the graph of this workspace");
        faults(policy, &reached(&metadata, false), &reached(&metadata, true))
    }

    fn policy(allow: &[&str]) -> Policy {
        let allow = allow.iter().map(|license| (*license).to_owned()).collect();
        Policy { licenses: Licenses { allow }, bans: Bans { skip: vec![], deny: vec![] } }
    }

    #[test]
    fn a_licence_that_is_not_on_the_list_is_reported() {
        assert!(lines(&policy(&["MIT"])).iter().any(|line| line.starts_with("xtask ") && line.contains("Apache-2.0")));
    }

    #[test]
    fn a_banned_crate_is_reported_with_its_reason() {
        let mut policy = policy(&["MIT", "Apache-2.0"]);
        policy.bans.deny.push(super::Ban { name: "tokio".into(), reason: "only a test".into() });
        assert!(lines(&policy).contains(&"tokio: banned: only a test".to_owned()));
    }

    #[test]
    fn a_skip_that_is_no_longer_needed_is_reported() {
        let mut policy = policy(&["MIT", "Apache-2.0"]);
        policy.bans.skip.push(super::Skip { name: "tokio".into(), reason: "only a test".into() });
        assert!(lines(&policy).contains(&"deny.toml: skip of `tokio` is no longer needed: remove it".to_owned()));
    }
}
