//! The software bill of materials, in the CycloneDX format: every crate that is built into the binary, and the shared libraries beside it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde_json::{Value as Json, json};

use super::Release;
use crate::dependency_policy;
use crate::tools::hex_digest;

/// `libraries` are files of the machine that built the image.
pub(super) fn describe(root: &Path, release: &Release, libraries: &[&Path]) -> anyhow::Result<Json> {
    let checksums = read_checksums(root)?;
    let mut components: Vec<Json> = dependency_policy::reachable_packages(&release.metadata, false)
        .into_iter()
        .filter(|package| package.source.is_some())
        .map(|package| {
            let (name, version) = (package.name.to_string(), package.version.to_string());
            let mut component = json!({
                "type": "library", "name": name, "version": version, "purl": format!("pkg:cargo/{name}@{version}"),
                "licenses": [{ "expression": package.license.clone().unwrap_or_default().replace('/', " OR ") }],
            });
            if let Some(checksum) = checksums.get(&(name, version)) {
                component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
            }
            component
        })
        .collect();
    for library in libraries {
        let name = library.file_name().context("a library has a name")?.to_string_lossy();
        let content = std::fs::read(library).with_context(|| format!("failed to read `{}`", library.display()))?;
        let hashes = json!([{ "alg": "SHA-256", "content": hex_digest(&content) }]);
        components.push(json!({ "type": "file", "name": name, "hashes": hashes }));
    }
    Ok(json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": { "component": { "type": "application", "name": "headwater", "version": release.version } },
        "components": components,
    }))
}

/// From Cargo.lock, by name and version.
fn read_checksums(root: &Path) -> anyhow::Result<BTreeMap<(String, String), String>> {
    let text = std::fs::read_to_string(root.join("Cargo.lock")).context("failed to read Cargo.lock")?;
    let lock: toml::Table = toml::from_str(&text).context("failed to parse Cargo.lock")?;
    let packages = lock.get("package").and_then(toml::Value::as_array).context("Cargo.lock has no packages")?;
    let field = |package: &toml::Value, name: &str| package.get(name).and_then(toml::Value::as_str).map(str::to_owned);
    let checksum = |package| Some(((field(package, "name")?, field(package, "version")?), field(package, "checksum")?));
    Ok(packages.iter().filter_map(checksum).collect())
}

#[cfg(test)]
mod tests {
    use super::describe;
    use crate::process::workspace_root;
    use crate::release::Release;

    #[test]
    fn the_sbom_names_shipped_crates_with_checksums() {
        let root = workspace_root().expect("the workspace");
        let release = Release::read(&root).expect("the workspace");
        let sbom = describe(&root, &release, &[]).expect("a bill of materials");
        let components = sbom["components"].as_array().expect("a list");
        let tokio = components.iter().find(|component| component["name"] == "tokio").expect("tokio is shipped");
        assert_eq!(tokio["licenses"][0]["expression"], "MIT");
        assert_eq!(tokio["hashes"][0]["content"].as_str().expect("a checksum").len(), 64);
        assert!(components.iter().all(|component| component["name"] != "fe2o3-amqp"), "only tests use it");
    }
}
