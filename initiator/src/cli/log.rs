//! What the process behind an attachment writes into its log.
use tracing_subscriber::EnvFilter;

const DEFAULT: &str = "info";

/// What `IRONSIDE_LOG` asks for.
///
/// # Errors
/// Its text, if that is no filter.
pub(super) fn filter() -> Result<EnvFilter, String> {
    let wanted = std::env::var("IRONSIDE_LOG").ok().filter(|filter| !filter.is_empty());
    let wanted = wanted.unwrap_or_else(|| DEFAULT.into());
    EnvFilter::try_new(&wanted).map_err(|_| wanted)
}

/// The same, or what is written if nothing was asked for that can be understood.
pub(super) fn filter_or_default() -> EnvFilter {
    filter().unwrap_or_else(|_| EnvFilter::new(DEFAULT))
}
