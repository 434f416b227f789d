package emit

import (
	"fmt"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

// reader is what handles topics by an interface of its own: a namespace its queue topics, or a listener
// the log topics that it reads.
type reader struct {
	goName        string
	topics        []*model.Topic
	transactional bool // handlers get the transaction in which the cursor moves
}

func (r reader) handlers() string      { return r.goName + "Handlers" }
func (r reader) handler() string       { return r.goName + "Handler" }
func (r reader) unimplemented() string { return "Unimplemented" + r.handlers() }

func handleName(t *model.Topic) string { return "Handle" + t.GoName }

// addHandlers declares the interface, with a method for each topic, which outcome explains.
func (r reader) addHandlers(g *jen.Group, doc string, outcome func(*model.Topic) string) {
	addComment(g, doc)
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

func attempts(n int) string {
	if n == 1 {
		return "1 attempt"
	}
	return fmt.Sprintf("%d attempts", n)
}

// whenAway is said once per interface, because it is the same for all methods.
const whenAway = " Where what a method needs is away, it returns outbox.Unavailable(err): its topic rests, and no attempt is charged."

// newMethod says what becomes of the build when a topic comes: stubs tells whether generate writes one for it.
func newMethod(topic string, stubs bool) string {
	if !stubs {
		return " " + topic + " adds a method, so that the build fails until it is handled."
	}
	return " " + topic + " adds a method, for which generate writes a stub. With --stubs=none the build fails until it is handled."
}

// addUnimplemented declares the struct to embed for those who handle some topics only.
func (r reader) addUnimplemented(g *jen.Group) {
	name := r.unimplemented()
	addComment(g, name+" may be embedded to handle some topics only. Its methods return an error that wraps outbox.ErrUnimplemented: the topic rests, which the log says once at level ERROR, and no attempt is charged. Its events wait until a process in which the method is written delivers them.")
	g.Type().Id(name).Struct()
	g.Line()
	for _, t := range r.topics {
		addComment(g, handleName(t)+" returns an error: nobody handles "+t.FullName()+".")
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

// ties returns the calls of outbox.<function> that tie each topic to its method.
func (r reader) ties(function string) []jen.Code {
	calls := make([]jen.Code, len(r.topics))
	for i, t := range r.topics {
		calls[i] = r.tie(function, t)
	}
	return calls
}

func (r reader) tie(function string, t *model.Topic) jen.Code {
	return jen.Qual(outboxPath, function).Call(
		jen.Id(topicVar(t)), jen.Id("h"), jen.Id(r.handlers()).Dot(handleName(t)),
	)
}
