//! Curves as SVG, to stand within a page: text takes the page's colour, so that it is read in light and in dark.
use anyhow::Context as _;
use plotters::prelude::*;

const SIZE: (u32, u32) = (620, 340);
/// Told apart by most people who see colours differently (Okabe and Ito 2008).
pub(super) const COLOURS: [&str; 6] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
const GRID: RGBColor = RGBColor(128, 128, 128);

/// One curve.
pub(super) struct Series {
    pub name: String,
    /// One of [`COLOURS`], counted round.
    pub colour: usize,
    pub points: Vec<(f64, f64)>,
}

pub(super) struct Chart {
    pub title: &'static str,
    pub across: &'static str,
    pub up: &'static str,
    /// Names of the places 0, 1, 2… across, if it is no scale.
    pub places: Vec<String>,
    pub series: Vec<Series>,
}

impl Chart {
    /// Drawn.
    ///
    /// # Errors
    /// If it cannot be drawn, for which there is no reason known.
    pub(super) fn svg(&self) -> anyhow::Result<String> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| anyhow::anyhow!("{error}")).context("drawing a chart")?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let most_across = points().map(|point| point.0).fold(0.0, f64::max);
        let most_up = points().map(|point| point.1).fold(0.0, f64::max);
        let across = if self.places.is_empty() { 0.0..most_across * 1.05 } else { -0.3..most_across + 0.3 };
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin(12)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d(across, 0.0..(most_up * 1.08).max(1e-9))?;
        let place = |at: &f64| self.name_of(*at);
        chart
            .configure_mesh()
            .x_desc(self.across)
            .y_desc(self.up)
            .x_labels(if self.places.is_empty() { 8 } else { self.places.len() })
            .x_label_formatter(&place)
            .axis_style(GRID)
            .bold_line_style(GRID.mix(0.3))
            .light_line_style(TRANSPARENT)
            .label_style(("sans-serif", 13))
            .draw()?;
        for series in &self.series {
            let colour = colour(series.colour);
            chart.draw_series(LineSeries::new(series.points.iter().copied(), colour.stroke_width(2)))?;
            let dots = series.points.iter().map(|&point| Circle::new(point, 3, colour.filled()));
            chart.draw_series(dots)?;
        }
        root.present()?;
        Ok(())
    }

    fn name_of(&self, at: f64) -> String {
        if self.places.is_empty() {
            return format!("{at:.0}");
        }
        let is_place = at >= 0.0 && (at - at.round()).abs() < 0.01;
        let name = if is_place { self.places.get(at.round() as usize) } else { None };
        name.cloned().unwrap_or_default()
    }
}

fn colour(index: usize) -> RGBColor {
    let digits = COLOURS[index % COLOURS.len()].trim_start_matches('#');
    let part = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("two hexadecimal digits");
    RGBColor(part(0), part(2), part(4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_names_its_places_and_draws_each_curve_in_its_colour() {
        let series =
            |name: &str, colour| Series { name: name.into(), colour, points: vec![(0.0, 1.0), (1.0, 2.0)] };
        let chart = Chart {
            title: "t",
            across: "depth",
            up: "IOPS",
            places: vec!["one".into(), "many".into()],
            series: vec![series("a", 0), series("b", 7)],
        };
        let svg = chart.svg().unwrap();
        for wanted in ["one", "many", "depth", "IOPS", COLOURS[0], COLOURS[1]] {
            assert!(svg.contains(wanted), "{wanted} is missing in {svg}");
        }
    }
}
