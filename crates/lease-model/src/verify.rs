//! Runs the checker over one scenario and says what it found.

use std::fmt;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

use crate::action::ModelAction;
use crate::action_counts::ActionCounts;
use crate::bounds::Bounds;
use crate::model::LeaseProtocol;

/// What a run found.
#[derive(Debug)]
pub struct VerificationResult {
    /// Different states.
    pub states: usize,
    /// Steps taken, to states new and known.
    pub steps: usize,
    /// The longest way that was needed to reach a state.
    pub depth: usize,
    pub took: Duration,
    /// The promises that were checked.
    pub checked: Vec<&'static str>,
    pub broken: Vec<Counterexample>,
    pub counts: ActionCounts,
}

/// A promise, and a history that breaks it.
#[derive(Clone, Debug)]
pub struct Counterexample {
    pub promise: &'static str,
    pub history: Vec<ModelAction>,
}

/// Visits every state within the bounds; or, if a promise is named, every state until one is found that breaks it.
pub fn verify(bounds: &Bounds, threads: usize, until_broken: Option<&'static str>) -> VerificationResult {
    let started = Instant::now();
    let model = LeaseProtocol::new(bounds.clone());
    let checked = model.properties().iter().map(|property| property.name).collect();
    let until = until_broken.map_or(HasDiscoveries::All, |promise| HasDiscoveries::AllOf([promise].into()));
    let checker = model.checker().threads(threads).finish_when(until).spawn_bfs().join();
    let found = checker.discoveries().into_iter();
    let mut broken: Vec<Counterexample> =
        found.map(|(promise, path)| Counterexample { promise, history: path.into_actions() }).collect();
    broken.sort_by_key(|broken| broken.history.len());
    VerificationResult {
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        took: started.elapsed(),
        checked,
        broken,
        counts: checker.model().counts.clone(),
    }
}

/// A shortest history that breaks the promise, if there is one. (What [`verify`] reports is short, not always shortest.)
pub fn shortest(bounds: &Bounds, promise: &'static str) -> Option<Counterexample> {
    let mut found: Option<Counterexample> = None;
    loop {
        let model = LeaseProtocol::new(bounds.clone()).checker().finish_when(HasDiscoveries::AllOf([promise].into()));
        // A history of n steps ends at depth n + 1.
        let search = match &found {
            Some(broken) => model.target_max_depth(broken.history.len() + 1),
            None => model,
        };
        match search.spawn_bfs().join().discovery(promise) {
            Some(path) => found = Some(Counterexample { promise, history: path.into_actions() }),
            None => return found,
        }
    }
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "broken: {}, after {} steps", self.promise, self.history.len())?;
        for (number, action) in self.history.iter().enumerate() {
            writeln!(f, "  {:>3}. {action}", number + 1)?;
        }
        Ok(())
    }
}
