package main

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// reach says which tests use what a unit is.
type reach struct {
	byHit map[string][]test
	units []unit
}

func newReach(tests []test, units []unit) *reach {
	r := &reach{byHit: map[string][]test{}, units: units}
	for _, t := range tests {
		for _, hit := range t.Hits {
			r.byHit[hit] = append(r.byHit[hit], t)
		}
	}
	return r
}

// tests returns the tests that use what m changes, the fastest first.
func (r *reach) tests(m mutant) []test {
	var found []test
	switch {
	case m.goPackage != "":
		p, _ := m.decides()
		for _, t := range r.byHit[m.unit] {
			if slices.Contains(p.tests(), t.Package) {
				found = append(found, t)
			}
		}
	case m.file == "":
		found = slices.Clone(r.byHit["query "+m.unit])
	default:
		found = r.object(m.unit, map[string]bool{})
	}
	slices.SortFunc(found, func(a, b test) int {
		return cmp.Or(cmp.Compare(a.Millis, b.Millis), strings.Compare(a.String(), b.String()))
	})
	return slices.CompactFunc(found, func(a, b test) bool { return a.String() == b.String() })
}

var indexed = regexp.MustCompile(`\bON outbox_schema\.(\w+)`)

// object returns the tests that use an object of the schema: PostgreSQL has counted a use, or they use what names it. A
// function of SQL that is a part of a plan is not counted, nor is a view.
func (r *reach) object(name string, seen map[string]bool) []test {
	if seen[name] {
		return nil
	}
	seen[name] = true
	kind, object, _ := strings.Cut(name, " ")
	var own unit
	for _, u := range r.units {
		if u.name == name {
			own = u
		}
	}
	switch kind {
	case "index":
		return slices.Clone(r.byHit["table "+indexed.FindStringSubmatch(own.text)[1]])
	case "table":
		return slices.Clone(r.byHit[name])
	}
	found := slices.Clone(r.byHit[name])
	word := regexp.MustCompile(`\boutbox_schema\.` + object + `\b`)
	for _, u := range r.units {
		switch {
		case u.name == name || !word.MatchString(u.text):
		case u.file == "":
			found = append(found, r.byHit["query "+u.name]...)
		default:
			found = append(found, r.object(u.name, seen)...)
		}
	}
	if kind == "view" && len(found) == 0 {
		for _, table := range regexp.MustCompile(`FROM outbox_schema\.(\w+)`).FindAllStringSubmatch(own.text, 1) {
			found = append(found, r.byHit["table "+table[1]]...)
		}
	}
	return found
}
