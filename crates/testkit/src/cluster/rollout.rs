//! Rollouts: every pod restarts with the next configuration, one after the other, as Kubernetes does it.

use super::{Error, ProcessState, TestCluster};

impl TestCluster {
    /// The index of the configuration that the pods read when they start, of [`rollouts`](super::TestClusterConfig::rollouts).
    pub fn rollout_index(&self) -> usize {
        self.rollouts % self.config.rollouts.len().max(1)
    }

    /// How many rollouts there were.
    pub fn rollout_count(&self) -> usize {
        self.rollouts
    }

    /// Writes the next configuration and restarts the running pods one after the other. Pods that are down or paused have it after
    /// their next start. Returns false when there is no other configuration.
    pub async fn roll_out(&mut self) -> Result<bool, Error> {
        if self.config.rollouts.len() < 2 {
            return Ok(false);
        }
        let before = self.rollout_index();
        self.rollouts += 1;
        self.write_configuration(before, self.rollout_index())?;
        for number in 0..self.pods.len() {
            if self.pods[number].state() == ProcessState::Running {
                self.restart_pod(number).await?;
            }
        }
        Ok(true)
    }

    /// Restarts every pod, so that all have the configuration of the last rollout.
    pub async fn finish_rollout(&mut self) -> Result<(), Error> {
        for number in 0..self.pods.len() {
            self.restart_pod(number).await?;
        }
        Ok(())
    }

    fn write_configuration(&self, before: usize, now: usize) -> Result<(), Error> {
        let (before, now) = (&self.config.rollouts[before], &self.config.rollouts[now]);
        for path in self.pods.iter().map(|pod| pod.config()).chain([self.operator_config()]) {
            let text = std::fs::read_to_string(path).map_err(Error::io("read a configuration file"))?;
            assert!(text.contains(before.as_str()), "`extra_yaml` is the first of `rollouts`");
            super::write_file(path, &text.replace(before.as_str(), now))?;
        }
        Ok(())
    }
}
