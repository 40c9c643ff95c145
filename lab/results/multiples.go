package main

import (
	"fmt"
	"html"
	"strings"
)

// The layout of small multiples, in pixels: panels of cells in four columns.
const (
	cellSize  = 10
	perRow    = 4
	gapLeft   = 34 // for the labels of a panel's rows
	gapTop    = 24 // for its title
	gapBottom = 22 // for the labels of its columns
	gapRight  = 8
)

// Colours of a cell that never, sometimes and always stays down: a light one, two that are told apart in any colour vision.
const (
	cellUp   = "#E8EEF2"
	cellSome = "#E69F00"
	cellDown = "#7A1F00"
)

// multiples draws all maps beside each other: ρ to the right, outages upwards, a cell for each pair.
func (d *mapData) multiples() []byte {
	width := gapLeft + len(d.Rho)*cellSize + gapRight
	height := gapTop + len(d.Outages)*cellSize + gapBottom
	rows := (len(d.Maps) + perRow - 1) / perRow
	all, tall := perRow*width, 46+rows*height+24
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="10" fill="#222">`+"\n", all, tall, all, tall)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", all, tall)
	fmt.Fprintf(&b, `<text x="8" y="18" font-size="14" font-weight="bold">Where a policy collapses and stays down</text>`+"\n")
	x := 8
	for _, k := range []struct{ colour, text string }{{cellUp, "back"}, {cellSome, "stays down in some runs"}, {cellDown, "stays down"}} {
		fmt.Fprintf(&b, `<rect x="%d" y="26" width="%d" height="%d" fill="%s"/><text x="%d" y="35">%s</text>`+"\n", x, cellSize, cellSize, k.colour, x+14, k.text)
		x += 24 + 6*len(k.text)
	}
	for i, m := range d.Maps {
		left, top := i%perRow*width+gapLeft, 46+i/perRow*height+gapTop
		fmt.Fprintf(&b, `<text x="%d" y="%d" font-size="12" font-weight="bold">%s</text>`+"\n", left, top-7, html.EscapeString(m.Policy))
		for _, colour := range []string{cellUp, cellSome, cellDown} {
			fmt.Fprintf(&b, `<path fill="%s" d="%s"/>`+"\n", colour, d.cells(m, colour, left, top))
		}
		for o, seconds := range d.Outages {
			if o%3 == 0 || o == len(d.Outages)-1 {
				fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s s</text>`+"\n", left-3, top+(len(d.Outages)-o)*cellSize-1, short(seconds))
			}
		}
		for r, rho := range d.Rho {
			if r%4 == 0 {
				fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", left+r*cellSize+cellSize/2, top+len(d.Outages)*cellSize+11, short(rho))
			}
		}
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">to the right: utilisation ρ by the calls alone; upwards: length of the outage</text>`+"\n</svg>\n", all/2, tall-8)
	return []byte(b.String())
}

// cells of one colour as one path, neighbours in a row together.
func (d *mapData) cells(m policyMap, colour string, left, top int) string {
	var b strings.Builder
	for o, row := range m.Down {
		for r := 0; r < len(row); {
			end := r
			for end < len(row) && colourOf(row[end]) == colour {
				end++
			}
			if end == r {
				r++
				continue
			}
			fmt.Fprintf(&b, "M%d %dh%dv%dh-%dz", left+r*cellSize, top+(len(d.Outages)-1-o)*cellSize, (end-r)*cellSize, cellSize, (end-r)*cellSize)
			r = end
		}
	}
	return b.String()
}

func colourOf(down float64) string {
	switch {
	case down <= 0:
		return cellUp
	case down < 1:
		return cellSome
	}
	return cellDown
}

func short(v float64) string { return fmt.Sprintf("%.4g", v) }
