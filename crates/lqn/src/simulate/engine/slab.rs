//! A slab of requests, threads and branches: a freed index is reused together with the memory of its value.

/// Values with reusable indices.
pub(super) struct Slab<T> {
    pub(super) values: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { values: Vec::new(), free: Vec::new() }
    }
}

impl<T: Default> Slab<T> {
    pub(super) fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.values[index as usize] = value;
                index
            }
            None => {
                self.values.push(value);
                self.values.len() as u32 - 1
            }
        }
    }

    /// Takes an index. Its value is as it was freed, including its memory.
    pub(super) fn allocate(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.values.push(T::default());
            self.values.len() as u32 - 1
        })
    }

    pub(super) fn release(&mut self, index: u32) {
        self.free.push(index);
    }

    /// Returns the largest number of values that existed at a time.
    pub(super) fn peak(&self) -> usize {
        self.values.len()
    }

    pub(super) fn count(&self) -> usize {
        self.values.len() - self.free.len()
    }
}
