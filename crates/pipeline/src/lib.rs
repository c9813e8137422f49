//! The walk of one event: capture, checkpoint, publish, session, view.
