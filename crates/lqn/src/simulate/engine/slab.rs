//! A slab of requests, threads and branches: a freed index is reused together with the memory of its value.

/// Values with reusable indices.
pub(super) struct Slab<T> {
    pub(super) all: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { all: Vec::new(), free: Vec::new() }
    }
}

impl<T: Default> Slab<T> {
    pub(super) fn add(&mut self, one: T) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.all[place as usize] = one;
                place
            }
            None => {
                self.all.push(one);
                self.all.len() as u32 - 1
            }
        }
    }

    /// Takes an index. Its value is as it was freed, including its memory.
    pub(super) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.all.push(T::default());
            self.all.len() as u32 - 1
        })
    }

    pub(super) fn give(&mut self, place: u32) {
        self.free.push(place);
    }

    /// Returns the largest number of values that existed at a time.
    pub(super) fn most(&self) -> usize {
        self.all.len()
    }

    pub(super) fn count(&self) -> usize {
        self.all.len() - self.free.len()
    }
}
