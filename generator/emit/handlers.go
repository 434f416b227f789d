package emit

import (
	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

// reader is what has a handlers interface for its topics: a namespace for its queue topics, or a listener for the log
// topics that it reads.
type reader struct {
	goName        string
	topics        []*model.Topic
	transactional bool // handlers get the transaction in which the cursor advances
}

func (r reader) handlers() string      { return r.goName + "Handlers" }
func (r reader) handler() string       { return r.goName + "Handler" }
func (r reader) unimplemented() string { return "Unimplemented" + r.handlers() }

func handleName(t *model.Topic) string { return "Handle" + t.GoName }

// addHandlers declares the interface with a method per topic. Outcome says what becomes of an event.
func (r reader) addHandlers(g *jen.Group, doc, user string, outcome func(*model.Topic) string) {
	addComment(g, doc, user)
	g.Type().Id(r.handlers()).InterfaceFunc(func(g *jen.Group) {
		for i, t := range r.topics {
			if i > 0 {
				g.Line()
			}
			addComment(g, handleName(t)+" handles one "+t.FullName()+" event"+outcome(t))
			params := []jen.Code{jen.Id("ctx").Qual(contextPath, "Context")}
			if r.transactional {
				params = append(params, jen.Id("tx").Qual(pgxPath, "Tx"))
			}
			g.Id(handleName(t)).Params(append(params, jen.Id("d").Add(delivery(t)))...).Error()
		}
	})
	g.Line()
}

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
		addComment(g, handleName(t)+" returns an error: "+t.FullName()+" has no handler.")
		params := []jen.Code{jen.Qual(contextPath, "Context")}
		if r.transactional {
			params = append(params, jen.Qual(pgxPath, "Tx"))
		}
		g.Func().Params(jen.Id(name)).Id(handleName(t)).Params(append(params, delivery(t))...).Error().Block(
			jen.Return(jen.Qual(outboxPath, "Unimplemented").Call(jen.Lit(t.FullName()))),
		)
		g.Line()
	}
}

// ties returns the calls of function, of the package of the machine, that tie each topic to its method.
func (r reader) ties(machine, function string) []jen.Code {
	calls := make([]jen.Code, len(r.topics))
	for i, t := range r.topics {
		calls[i] = r.tie(machine, function, t)
	}
	return calls
}

func (r reader) tie(machine, function string, t *model.Topic) jen.Code {
	params := []jen.Code{jen.Id("ctx").Qual(contextPath, "Context")}
	args := []jen.Code{jen.Id("ctx")}
	if r.transactional {
		params, args = append(params, jen.Id("tx").Qual(pgxPath, "Tx")), append(args, jen.Id("tx"))
	}
	received := delivery(t).Values(jen.Id("Event").Op(":").Id("e"),
		jen.Id("Payload").Op(":").Op("*").Id(payload).Assert(jen.Op("*").Id(t.GoName)))
	return jen.Qual(machine, function+"Untyped").Call(
		jen.Id(topicVar(t)).Dot("Untyped").Call(), jen.Id("h"),
		jen.Func().Params(append(params, jen.Id("e").Qual(outboxPath, "Event"), jen.Id(payload).Any())...).Error().Block(
			jen.Return(jen.Id("h").Dot(handleName(t)).Call(append(args, received)...)),
		),
	)
}
