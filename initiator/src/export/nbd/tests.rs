//! An export driven without sockets: bytes in at any split, a volume in memory, bytes out.
mod hostile;
mod negotiation;
mod served;
mod transmission;
mod world;
