package editor

import (
	"strings"

	"github.com/outboxgen/outboxgen/generator/spec"
)

// Symbol is a part of the outline of a file.
type Symbol struct {
	Name      string
	Detail    string
	Thing     spec.Thing // "" for a section, such as namespaces
	Range     Range      // all that belongs to it
	NameRange Range      // of its name
	Children  []Symbol
}

// Outline returns the sections, namespaces, topics, fields and so on, in their order.
func (d *Document) Outline() []Symbol { return d.outline(d.check().tree) }

func (d *Document) outline(n *node) (list []Symbol) {
	for _, c := range n.children {
		if !c.colon {
			continue
		}
		thing := slotOf(n).Declares
		section := thing == "" && (slotOf(c).Declares != "" && slotOf(c).Declares != spec.HeaderThing)
		if thing == "" && !section {
			continue
		}
		s := Symbol{
			Name: c.name, Thing: thing, Range: d.rangeOf(span{c.key.start, c.end}), NameRange: d.rangeOf(c.key), Children: d.outline(c),
		}
		switch thing {
		case spec.FieldThing:
			s.Detail = fieldType(c)
		case spec.TypeThing:
			s.Detail = typeForm(c)
		}
		if section && thing == "" && c.name != "types" && n.parent != nil && (c.name == "topics" || c.name == "payload" ||
			c.name == "fields" || c.name == "outcomes") {
			list = append(list, s.Children...) // the level says nothing
			continue
		}
		list = append(list, s)
	}
	return list
}

// Fold is a range of lines that can be hidden behind the first one.
type Fold struct {
	Start, End int // lines, from 0
	Comment    bool
}

// Folds returns the mappings, lists and comments that take several lines.
func (d *Document) Folds() []Fold {
	var folds []Fold
	d.check().tree.walk(func(n *node) {
		if n.parent == nil {
			return
		}
		start, end := d.position(n.start()).Line, d.position(n.end).Line
		if end > start && (len(folds) == 0 || folds[len(folds)-1].Start != start) {
			folds = append(folds, Fold{Start: start, End: end})
		}
	})
	for line := 0; line < len(d.lines); {
		end := line
		for end < len(d.lines) && strings.HasPrefix(strings.TrimSpace(d.src[d.lines[end]:d.lineEnd(end)]), "#") {
			end++
		}
		if end-line > 1 {
			folds = append(folds, Fold{Start: line, End: end - 1, Comment: true})
		}
		line = max(end, line+1)
	}
	return folds
}
