//! `cargo xtask`: everything around the code.

fn main() -> anyhow::Result<()> {
    Ok(())
}
