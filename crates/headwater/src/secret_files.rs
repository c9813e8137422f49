//! Watches the files that secrets were read from (`uri_file` and the others): Kubernetes replaces them while a pod runs.
//!
//! Polled by content: a mounted Secret is replaced by a symbolic link, which file events do not report reliably.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The kubelet needs up to a minute to update a mounted Secret, so this adds little.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);

/// Pods of a deployment see a new Secret at about the same time; they restart their services one after the other within this time.
const MAX_JITTER: Duration = Duration::from_secs(10);

/// The files and their contents as they were read. Only hashes are kept.
pub(crate) struct SecretFiles {
    known: BTreeMap<PathBuf, Option<u64>>,
}

impl SecretFiles {
    pub(crate) fn new(files: &[PathBuf]) -> Self {
        Self { known: files.iter().map(|file| (file.clone(), hash(file))).collect() }
    }

    /// Adds files that are not known yet.
    pub(crate) fn watch(&mut self, files: &[PathBuf]) {
        for file in files {
            self.known.entry(file.clone()).or_insert_with(|| hash(file));
        }
    }

    fn record_contents(&mut self) {
        for (file, known) in &mut self.known {
            *known = hash(file).or(*known);
        }
    }

    /// Waits until the content of a file changes, and a random time more: pods must not restart together. A file that cannot be read counts as unchanged: it is about to be replaced.
    pub(crate) async fn changed(&mut self) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let is_new = |(file, known): (&PathBuf, &Option<u64>)| {
                hash(file).filter(|found| *known != Some(*found)).map(|found| (file.clone(), Some(found)))
            };
            let changed: Vec<_> = self.known.iter().filter_map(is_new).collect();
            if !changed.is_empty() {
                self.known.extend(changed);
                tokio::time::sleep(MAX_JITTER.mul_f64(rand::random())).await;
                // The configuration is read after this: a file that changed again is read in its last version.
                self.record_contents();
                return;
            }
        }
    }
}

fn hash(file: &Path) -> Option<u64> {
    let content = std::fs::read(file).ok()?;
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_new_content_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("uri");
        std::fs::write(&file, "one").unwrap();
        let mut files = SecretFiles::new(std::slice::from_ref(&file));
        let waited = tokio::time::timeout(Duration::from_secs(60), files.changed()).await;
        assert!(waited.is_err(), "nothing changed");
        std::fs::remove_file(&file).unwrap();
        assert!(tokio::time::timeout(Duration::from_secs(60), files.changed()).await.is_err(), "about to be replaced");
        std::fs::write(&file, "two").unwrap();
        let started = tokio::time::Instant::now();
        files.changed().await;
        assert!(started.elapsed() <= INTERVAL + MAX_JITTER);
        assert!(tokio::time::timeout(Duration::from_secs(60), files.changed()).await.is_err(), "reported once");
    }

    #[tokio::test(start_paused = true)]
    async fn pods_report_the_same_change_at_different_times() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("uri");
        std::fs::write(&file, "one").unwrap();
        let mut pods = [(); 3].map(|()| SecretFiles::new(std::slice::from_ref(&file)));
        std::fs::write(&file, "two").unwrap();
        let started = tokio::time::Instant::now();
        let report = async |pod: &mut SecretFiles| {
            pod.changed().await;
            started.elapsed()
        };
        let [first, second, third] = &mut pods;
        let (first, second, third) = tokio::join!(report(first), report(second), report(third));
        assert!(first != second && second != third && first != third, "{first:?} {second:?} {third:?}");
    }
}
