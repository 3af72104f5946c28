//! Pins again what others have unpinned while the agent runs.

use crate::{
    load::Loaded,
    pins::{PinError, Pins, failed, is_missing},
};

impl Pins {
    /// Pins again what has lost its pin, of `loaded`'s maps and of the links. Returns how many pins
    /// there were to make. To be called now and then, and only by the agent that has these pins.
    ///
    /// # Errors
    ///
    /// If there is no BPF file system any more, another agent has taken the place, or the kernel
    /// refuses. Links and maps are still there as long as this process is.
    pub fn restore(&self, loaded: &Loaded) -> Result<usize, PinError> {
        let maps: Vec<_> = loaded.pins().filter(|(_, path)| is_missing(path)).collect();
        let links = self.links_without_pin();
        let missing = maps.len() + links.len();
        if missing == 0 {
            return Ok(0);
        }
        self.provide_place()?;
        for (name, path) in maps {
            loaded.pin_map(name, path).map_err(failed("pin", path))?;
        }
        for (path, link) in links {
            link.pin(&path).map_err(failed("pin", &path))?;
        }
        Ok(missing)
    }
}
