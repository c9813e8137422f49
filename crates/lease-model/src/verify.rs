//! Runs the checker over one scenario and returns the result.

use std::fmt;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

use crate::action::ModelAction;
use crate::action_counts::ActionCounts;
use crate::bounds::ModelBounds;
use crate::model::LeaseProtocol;

/// The result of a run.
#[derive(Debug)]
pub struct VerificationResult {
    /// The number of distinct states.
    pub states: usize,
    /// The number of steps, to new and known states.
    pub steps: usize,
    /// The longest of the shortest paths to a state.
    pub depth: usize,
    pub took: Duration,
    /// The invariants that were checked.
    pub checked: Vec<&'static str>,
    pub counterexamples: Vec<Counterexample>,
    pub counts: ActionCounts,
}

/// An invariant, and a history that violates it.
#[derive(Clone, Debug)]
pub struct Counterexample {
    pub invariant: &'static str,
    pub history: Vec<ModelAction>,
}

/// Visits every state within the bounds; or, if an invariant is given, until a state violates it.
pub fn verify(bounds: &ModelBounds, threads: usize, until_broken: Option<&'static str>) -> VerificationResult {
    let started = Instant::now();
    let model = LeaseProtocol::new(bounds.clone());
    let checked = model.properties().iter().map(|property| property.name).collect();
    let until = until_broken.map_or(HasDiscoveries::All, |invariant| HasDiscoveries::AllOf([invariant].into()));
    let checker = model.checker().threads(threads).finish_when(until).spawn_bfs().join();
    let found = checker.discoveries().into_iter();
    let mut counterexamples: Vec<Counterexample> =
        found.map(|(invariant, path)| Counterexample { invariant, history: path.into_actions() }).collect();
    counterexamples.sort_by_key(|found| found.history.len());
    VerificationResult {
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        took: started.elapsed(),
        checked,
        counterexamples,
        counts: checker.model().counts.clone(),
    }
}

/// A shortest history that violates the invariant, if there is one. (A counterexample of [`verify`] is short, but not always shortest.)
pub fn shortest(bounds: &ModelBounds, invariant: &'static str) -> Option<Counterexample> {
    let mut found: Option<Counterexample> = None;
    loop {
        let model = LeaseProtocol::new(bounds.clone()).checker().finish_when(HasDiscoveries::AllOf([invariant].into()));
        // A history of n steps ends at depth n + 1.
        // The first counterexample is not always the shortest: search again with its length as the bound.
        let search = match &found {
            Some(shorter) => model.target_max_depth(shorter.history.len() + 1),
            None => model,
        };
        match search.spawn_bfs().join().discovery(invariant) {
            Some(path) => found = Some(Counterexample { invariant, history: path.into_actions() }),
            None => return found,
        }
    }
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "violated: {}, after {} steps", self.invariant, self.history.len())?;
        for (number, action) in self.history.iter().enumerate() {
            writeln!(f, "  {:>3}. {action}", number + 1)?;
        }
        Ok(())
    }
}
