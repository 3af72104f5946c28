//! The `node-lb` command.

fn main() -> anyhow::Result<()> {
    Ok(())
}
