//! Biases of experts, `[E, out]`, on sorted rows. CPU only.

use super::experts::Routes;
use super::slices::{read, write};
use super::{Capability, Error, Result, matrix_dims};
use candle_core::Tensor;

impl Routes {
    /// Checks the shapes of sorted rows and of experts' biases. Returns their width.
    fn width(&self, rows: &Tensor, biases: &Tensor) -> Result<usize> {
        Capability::ExpertBiases.require(rows)?;
        let ((n, width), (experts, out)) = (matrix_dims(rows), matrix_dims(biases));
        if n != self.tokens().len() || experts != self.experts || out != width {
            return Err(Error::shape("experts' biases", format!("{:?} for {:?}", biases.shape(), rows.shape())));
        }
        Ok(width)
    }

    /// Adds to each sorted row of `y: [R, out]` the bias of its expert, in place.
    pub fn add_biases(&self, y: &Tensor, biases: &Tensor) -> Result<()> {
        let (width, biases) = (self.width(y, biases)?, read(biases)?);
        write(y, |y| {
            for (expert, rows) in self.groups() {
                let bias = &biases[expert * width..][..width];
                for row in y[rows.start * width..rows.end * width].chunks_mut(width) {
                    row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
                }
            }
        })
    }

    /// Returns the product of each sorted row with the bias of its expert, `[R]`.
    pub fn dots_with_biases(&self, rows: &Tensor, biases: &Tensor) -> Result<Vec<f32>> {
        let (width, rows_of, biases) = (self.width(rows, biases)?, read(rows)?, read(biases)?);
        let mut all = vec![0.0; self.tokens().len()];
        for (expert, rows) in self.groups() {
            let bias = &biases[expert * width..][..width];
            for row in rows {
                all[row] = rows_of[row * width..][..width].iter().zip(bias).map(|(x, b)| x * b).sum();
            }
        }
        Ok(all)
    }

    /// Adds the gradient of the biases to `d_biases: [E, out]`, given that of the sorted rows.
    pub fn add_bias_gradients(&self, dy: &Tensor, d_biases: &Tensor) -> Result<()> {
        let (width, dy) = (self.width(dy, d_biases)?, read(dy)?);
        write(d_biases, |d| {
            for (expert, rows) in self.groups() {
                let bias = &mut d[expert * width..][..width];
                for row in dy[rows.start * width..rows.end * width].chunks(width) {
                    bias.iter_mut().zip(row).for_each(|(b, d)| *b += d);
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::experts::Routing;
    use super::*;
    use candle_core::Device;

    #[test]
    fn each_row_has_the_bias_of_its_expert() {
        let of = |values: &[[f32; 2]]| Tensor::from_slice(&values.concat(), (values.len(), 2), &Device::Cpu).unwrap();
        // The first token goes to the second expert, the others to the first, whose rows come first.
        let routes = Routes::new(&of(&[[0.0, 1.0], [4.0, 0.0], [3.0, 0.0]]), Routing::new(1, true), None).unwrap();
        assert_eq!(routes.tokens(), [1, 2, 0]);
        let (rows, biases) = (of(&[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), of(&[[0.5, -1.0], [10.0, 20.0]]));
        assert_eq!(routes.dots_with_biases(&rows, &biases).unwrap(), [-1.5, -2.5, 170.0]);
        let d = of(&[[1.0, 0.0], [0.0, 0.0]]);
        routes.add_bias_gradients(&rows, &d).unwrap();
        assert_eq!(d.to_vec2::<f32>().unwrap(), [[5.0, 6.0], [5.0, 6.0]]);
        routes.add_biases(&rows, &biases).unwrap();
        assert_eq!(rows.to_vec2::<f32>().unwrap(), [[1.5, 1.0], [3.5, 3.0], [15.0, 26.0]]);
        assert!(routes.add_biases(&rows, &of(&[[0.0, 0.0]])).is_err());
    }
}
