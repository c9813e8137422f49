//! Leader election by a lease in MongoDB: who may lead, and in which term.
