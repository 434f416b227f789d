package emit

import (
	"go/token"
	"go/types"
	"slices"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

func txType(o *model.Operation) string      { return o.GoName + "Tx" }
func outcomeType(o *model.Operation) string { return o.GoName + "Outcome" }

// The names of the fields in the transaction and in the outcome of an operation differ between operations, because Go
// converts between struct types with the same fields.
func operationField(o *model.Operation) string { return lowerFirst(o.GoName) + "Operation" }
func outcomeField(o *model.Operation) string   { return lowerFirst(o.GoName) + "Outcome" }

// operation renders the file of an operation: the function that runs it, its transaction and its outcomes.
func (e *emitter) operation(o *model.Operation) ([]byte, error) {
	f := e.newFile("operation " + o.Name)
	g := f.Group
	addOperation(g, o)
	addOperationTx(g, o)
	for _, outcome := range o.Outcomes {
		addOutcome(g, o, outcome)
	}
	addOutcomeType(g, o)
	return render(f)
}

// addOperation declares the function that runs o.
func addOperation(g *jen.Group, o *model.Operation) {
	ctx := jen.Id("ctx").Qual(contextPath, "Context")
	addComment(g, o.GoName+" runs operation "+o.Name+
		": it calls do in a transaction of db and commits with the outcome that do returns.",
		userDoc(o.GoName, o.Doc),
		"do gets an outcome only from a method of tx, which enqueues its events. An error of do rolls back and is "+
			"returned. A zero outcome, or a second one, rolls back with an error that wraps operation.ErrNoOutcome. A panic "+
			"rolls back and continues. "+o.GoName+" does not retry: see operation.Run.")
	g.Func().Id(o.GoName).Params(
		ctx.Clone(),
		jen.Id("db").Qual(operationPath, "Beginner"),
		jen.Id("do").Func().Params(ctx.Clone(), jen.Id("tx").Op("*").Id(txType(o))).Params(jen.Id(outcomeType(o)),
			jen.Error()),
	).Error().Block(
		jen.Return(jen.Qual(operationPath, "Run").Call(
			jen.Id("ctx"), jen.Id("db"), jen.Lit(o.Name),
			jen.Func().Params(ctx.Clone(), jen.Id("o").Op("*").Qual(operationPath, "Operation")).
				Params(jen.Qual(operationPath, "Outcome"), jen.Error()).Block(
				jen.List(jen.Id("outcome"), jen.Err()).Op(":=").Id("do").Call(jen.Id("ctx"),
					jen.Op("&").Id(txType(o)).Values(jen.Id("Tx").Op(":").Id("o").Dot("Tx").Call(),
						jen.Id(operationField(o)).Op(":").Id("o"))),
				jen.Return(jen.Id("outcome").Dot(outcomeField(o)), jen.Err()),
			),
		)),
	)
	g.Line()
}

func addOperationTx(g *jen.Group, o *model.Operation) {
	addComment(g, txType(o)+" is the transaction of "+o.GoName+
		", for business rows. Its Commit and Rollback do nothing and return operation.ErrTxOwned. An outcome cannot be "+
		"made while a savepoint that its Begin has made is open.")
	members := []jen.Code{
		jen.Qual(operationPath, "Tx"),
		jen.Id(operationField(o)).Op("*").Qual(operationPath, "Operation"),
	}
	if emits(o) {
		members = append(members, jen.Id("opts").Index().Qual(outboxPath, "EnqueueOption"))
	}
	g.Type().Id(txType(o)).Struct(
		members...,
	)
	g.Line()
	if !emits(o) {
		return
	}
	addComment(g, "With returns tx with options for the events of its outcome, in place of any earlier ones.")
	g.Func().Params(jen.Id("tx").Op("*").Id(txType(o))).Id("With").
		Params(jen.Id("opts").Op("...").Qual(outboxPath, "EnqueueOption")).Op("*").Id(txType(o)).Block(
		jen.Return(jen.Op("&").Id(txType(o)).Values(
			jen.Id("Tx").Op(":").Id("tx").Dot("Tx"), jen.Id(operationField(o)).Op(":").Id("tx").Dot(operationField(o)),
			jen.Id("opts").Op(":").Id("opts"),
		)),
	)
	g.Line()
}

// emits reports whether an outcome of o has events.
func emits(o *model.Operation) bool {
	return slices.ContainsFunc(o.Outcomes, func(outcome *model.Outcome) bool { return len(outcome.Topics) > 0 })
}

// addOutcome declares the method that makes an outcome of o.
func addOutcome(g *jen.Group, o *model.Operation, outcome *model.Outcome) {
	method := g.Func
	receiver := jen.Id("tx").Op("*").Id(txType(o))
	if len(outcome.Topics) == 0 {
		addComment(g, outcome.GoName+" returns outcome "+outcome.Name+", which commits business rows without an event.")
		method().Params(receiver).Id(outcome.GoName).Params().Id(outcomeType(o)).Block(
			jen.Return(jen.Id(outcomeType(o)).Values(jen.Id("tx").Dot(operationField(o)).Dot("NoEvents").
				Call(jen.Lit(outcome.Name)))),
		)
		g.Line()
		return
	}
	params := []jen.Code{jen.Id("ctx").Qual(contextPath, "Context")}
	args := []jen.Code{jen.Id("ctx"), jen.Lit(outcome.Name), jen.Id("tx").Dot("opts")}
	names := make([]string, len(outcome.Topics))
	for i, t := range outcome.Topics {
		name := payload
		if len(outcome.Topics) > 1 {
			name = eventParam(t)
		}
		names[i] = t.FullName()
		params = append(params, jen.Id(name).Id(t.GoName))
		args = append(args, jen.Qual(operationPath, "Emission").Values(
			jen.Id("Topic").Op(":").Id(topicVar(t)).Dot("Untyped").Call(),
			jen.Id("Payload").Op(":").Op("&").Id(name),
		))
	}
	addComment(g, outcome.GoName+" enqueues "+enumerate(names)+" and returns outcome "+outcome.Name+
		", which commits with exactly that. An error leaves the operation without an outcome, so that it rolls back.")
	call := jen.Id("tx").Dot(operationField(o)).Dot("Emit").Call(args...)
	if len(outcome.Topics) > 1 {
		call = jen.Id("tx").Dot(operationField(o)).Dot("Emit").Custom(callLines("ctx", quoted(outcome.Name), "tx.opts"),
			args[3:]...)
	}
	method().Params(receiver).Id(outcome.GoName).Params(params...).Params(jen.Id(outcomeType(o)), jen.Error()).Block(
		jen.List(jen.Id("outcome"), jen.Err()).Op(":=").Add(call),
		jen.Return(jen.Id(outcomeType(o)).Values(jen.Id("outcome")), jen.Err()),
	)
	g.Line()
}

// addOutcomeType declares the type of the outcomes of o.
func addOutcomeType(g *jen.Group, o *model.Operation) {
	addComment(g, outcomeType(o)+" is an outcome of "+o.GoName+". Only the methods of "+txType(o)+
		" make one; the zero value is not an outcome.")
	g.Type().Id(outcomeType(o)).Struct(jen.Id(outcomeField(o)).Qual(operationPath, "Outcome"))
	g.Line()
	if !emits(o) {
		return
	}
	addComment(g, "Receipts returns the receipt of each event of the outcome, in the order of the YAML. It has "+
		"Duplicate set if the dedupe key of the event was taken.")
	g.Func().Params(jen.Id("o").Id(outcomeType(o))).Id("Receipts").Params().Index().Qual(outboxPath, "Receipt").Block(
		jen.Return(jen.Id("o").Dot(outcomeField(o)).Dot("Receipts").Call()),
	)
	g.Line()
}

// eventParam names the parameter for the payload of t, where there are several. It must be none of the other names in
// the function, nor a word of Go.
func eventParam(t *model.Topic) string {
	name := lowerFirst(t.GoName)
	if token.IsKeyword(name) || types.Universe.Lookup(name) != nil ||
		slices.Contains([]string{"ctx", "tx", "outcome", "err", "outbox", "context", "operation"}, name) {
		return name + "_" // no Go name of a topic has an underscore
	}
	return name
}
