package model

import (
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// Operation is a transaction that commits only with the events of one of its outcomes.
type Operation struct {
	Name     string // finalize_turn
	GoName   string // FinalizeTurn
	Doc      string
	Outcomes []*Outcome
}

// Outcome is one way in which an operation can end.
type Outcome struct {
	Name   string   // settled
	GoName string   // Settled
	Topics []*Topic // of its events, in YAML order; an outcome may have none
}

// txMethods are the names that an outcome cannot have, because the transaction of its operation has them.
var txMethods = setOf("Begin Commit Rollback CopyFrom SendBatch LargeObjects Prepare Exec Query QueryRow Conn Tx With")

func (b *builder) operations(specs []*spec.Operation) {
	for _, s := range specs {
		o := &Operation{Name: s.Name.V, Doc: PlainText(s.Doc.V)}
		b.model.Operations = append(b.model.Operations, o)
		where := "operation " + spec.Show(o.Name)
		names := b.newSymbols()
		for _, outcome := range s.Outcomes.Items {
			o.Outcomes = append(o.Outcomes, b.outcome(outcome, names, where))
		}
		if !b.checkName(s.Name, "operation") {
			continue
		}
		o.GoName = b.goName(s.Name, s.Go)
		self := &decl{what: where, pos: nameOrGo(s.Name, s.Go)}
		b.goNames.declare(self, o.GoName, o.GoName+"Tx", o.GoName+"Outcome")
	}
}

// outcome builds an outcome of the operation that messages call where. Names are those of its outcomes.
func (b *builder) outcome(s *spec.Outcome, names *symbols, where string) *Outcome {
	o := &Outcome{Name: s.Name.V}
	where = "outcome " + spec.Show(o.Name) + " of " + where
	first := make(map[string]diag.Pos, len(s.Topics.Items))
	for _, name := range s.Topics.Items {
		if !name.Set() {
			continue
		}
		if pos, twice := first[name.V]; twice {
			b.Errorf(name.Pos, diag.OperationDuplicateTopic,
				"duplicate topic %q in %s: the first one is at line %d; an outcome has one event of each of its topics", name.V,
				where, pos.Line)
			continue
		}
		first[name.V] = name.Pos
		t, known := b.topics[name.V]
		if !known {
			b.Errorf(name.Pos, diag.OperationUnknownTopic, "unknown topic %q in %s%s", name.V, where,
				b.DidYouMean(name.V, b.topicNames))
			continue
		}
		o.Topics = append(o.Topics, t)
	}
	if !b.checkName(s.Name, "outcome") {
		return o
	}
	o.GoName = camel(o.Name)
	if txMethods[o.GoName] {
		b.Errorf(s.Name.Pos, diag.NameCollision, "%s: the Go name %s belongs to its transaction: rename the outcome", where,
			o.GoName)
		return o
	}
	names.declare(&decl{what: where, pos: s.Name.Pos, fix: "rename one"}, o.GoName)
	return o
}
