package emit

import (
	"fmt"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

// reader is what has a handlers interface for its topics: a namespace for its queue topics, or a listener for the log
// topics that it reads.
type reader struct {
	goName        string
	topics        []*model.Topic
	transactional bool // handlers get the transaction in which the cursor advances
	batch         model.Batch
}

func (r reader) handlers() string      { return r.goName + "Handlers" }
func (r reader) handler() string       { return r.goName + "Handler" }
func (r reader) unimplemented() string { return "Unimplemented" + r.handlers() }

// batchOf returns how many events of t a method gets in one call: the queue topics of a namespace have batches of their
// own, and the log topics of a listener have its.
func (r reader) batchOf(t *model.Topic) model.Batch {
	if r.batch.Size > 0 {
		return r.batch
	}
	return t.Batch
}

func (r reader) method(t *model.Topic) string { return t.HandlerMethod(r.batchOf(t)) }

// param is the parameter that a method gets its events in.
func (r reader) param(t *model.Topic) *jen.Statement {
	if r.batchOf(t).Size > 0 {
		return jen.Id("ds").Add(r.delivered(t))
	}
	return jen.Id("d").Add(r.delivered(t))
}

// delivered is the type of that parameter.
func (r reader) delivered(t *model.Topic) *jen.Statement {
	if r.batchOf(t).Size > 0 {
		return jen.Index().Add(delivery(t))
	}
	return delivery(t)
}

// addHandlers declares the interface with a method per topic. Outcome says what becomes of an event.
func (r reader) addHandlers(g *jen.Group, doc, user string, outcome func(*model.Topic) string) {
	addComment(g, doc, user)
	g.Type().Id(r.handlers()).InterfaceFunc(func(g *jen.Group) {
		for i, t := range r.topics {
			if i > 0 {
				g.Line()
			}
			addComment(g, r.method(t)+" handles "+r.handled(t)+outcome(t))
			params := []jen.Code{jen.Id("ctx").Qual(contextPath, "Context")}
			if r.transactional {
				params = append(params, jen.Id("tx").Qual(pgxPath, "Tx"))
			}
			g.Id(r.method(t)).Params(append(params, r.param(t))...).Error()
		}
	})
	g.Line()
}

// handled says what one call of a method gets.
func (r reader) handled(t *model.Topic) string {
	b := r.batchOf(t)
	if b.Size == 0 {
		return "one " + t.FullName() + " event"
	}
	text := fmt.Sprintf("up to %d %s events in one call", b.Size, t.FullName())
	if b.Wait > 0 {
		text += ", the first of which waits up to " + strings.Replace(b.Wait.String(), "m0s", "m", 1) + " for others"
	}
	return text
}

// batchSearch is part of the comment of each method that gets batches.
const batchSearch = " A batch that fails as a whole, or whose process is killed, is retried in halves until the event " +
	"that does it is found, so the others may be handled again."

func delivery(t *model.Topic) *jen.Statement {
	return jen.Qual(outboxPath, "Delivery").Types(jen.Id(t.GoName))
}

// whenAway is part of the comment of each interface, because it is the same for all methods.
const whenAway = " If something that a method needs is unavailable, return outbox.Unavailable(err): the topic rests, " +
	"and no attempt is charged."

// newMethod says what a new topic means for the build. Stubs says whether generate writes a stub for it.
func newMethod(topic string, stubs bool) string {
	if !stubs {
		return " " + topic + " adds a method, so the build fails until it is written."
	}
	return " " + topic +
		" adds a method, and generate writes a stub for it. With --stubs=none the build fails until it is written."
}

// addUnimplemented declares the struct that a type embeds to handle only some topics.
func (r reader) addUnimplemented(g *jen.Group) {
	name := r.unimplemented()
	addComment(g,
		name+" can be embedded to handle only some topics. Its methods return an error that wraps outbox.ErrUnimplemented: "+
			"the topic rests, no attempt is charged, and the log says so once at level ERROR. The events wait for a process "+
			"that has the method.")
	g.Type().Id(name).Struct()
	g.Line()
	for _, t := range r.topics {
		addComment(g, r.method(t)+" returns an error: "+t.FullName()+" has no handler.")
		params := []jen.Code{jen.Qual(contextPath, "Context")}
		if r.transactional {
			params = append(params, jen.Qual(pgxPath, "Tx"))
		}
		g.Func().Params(jen.Id(name)).Id(r.method(t)).Params(append(params, r.delivered(t))...).Error().Block(
			jen.Return(jen.Qual(outboxPath, "Unimplemented").Call(jen.Lit(t.FullName()))),
		)
		g.Line()
	}
}

// ties returns the calls, of the package of the machine, that tie each topic to its method.
func (r reader) ties(machine string) []jen.Code {
	calls := make([]jen.Code, len(r.topics))
	for i, t := range r.topics {
		calls[i] = r.tie(machine, t)
	}
	return calls
}

func (r reader) tie(machine string, t *model.Topic) jen.Code {
	function := "Handle"
	params := []jen.Code{jen.Id("ctx").Qual(contextPath, "Context")}
	args := []jen.Code{jen.Id("ctx")}
	if r.transactional {
		function = "HandleTx"
		params, args = append(params, jen.Id("tx").Qual(pgxPath, "Tx")), append(args, jen.Id("tx"))
	}
	if r.batchOf(t).Size > 0 {
		return jen.Qual(machine, function+"Batch").Call(
			jen.Id(topicVar(t)), jen.Id("h"),
			jen.Func().Params(append(params, r.param(t))...).Error().Block(
				jen.Return(jen.Id("h").Dot(r.method(t)).Call(append(args, jen.Id("ds"))...)),
			),
		)
	}
	received := delivery(t).Values(jen.Id("Event").Op(":").Id("e"),
		jen.Id("Payload").Op(":").Op("*").Id(payload).Assert(jen.Op("*").Id(t.GoName)))
	return jen.Qual(machine, function+"Untyped").Call(
		jen.Id(topicVar(t)).Dot("Untyped").Call(), jen.Id("h"),
		jen.Func().Params(append(params, jen.Id("e").Qual(outboxPath, "Event"), jen.Id(payload).Any())...).Error().Block(
			jen.Return(jen.Id("h").Dot(r.method(t)).Call(append(args, received)...)),
		),
	)
}
