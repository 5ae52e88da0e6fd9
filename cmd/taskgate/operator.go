package main

import (
	"crypto/rand"
	"fmt"
	"log/slog"

	"taskgate/gateway"
	"taskgate/gateway/auth"
	"taskgate/gateway/config"
	"taskgate/gateway/operator"
)

// operators has the parts that show a process to its operators.
type operators struct {
	deployment *operator.Deployment
	handler    *operator.Handler
	methods    *auth.Methods // nil where sign-in is off
	token      string        // that the log's link has at the start; "" for none
}

// newOperators makes them. It sets in o how operators sign in; local says that only this machine can connect.
func newOperators(c *config.Config, local bool, d operator.DeploymentOptions, o operator.Options, log *slog.Logger) (*operators, error) {
	who, out := c.AdminAuth, &operators{deployment: operator.NewDeployment(d)}
	if !who.Required() && local {
		out.token = rand.Text()
		o.Link, o.Page = out.token, rand.Text()
		who.Keys = []config.BearerKey{config.BearerKey("local:" + config.HashKey(o.Link)), config.BearerKey("local:" + config.HashKey(o.Page))}
	}
	if who.Required() {
		var err error
		if out.methods, err = signIn(who, c.PublicURL, log); err != nil {
			return nil, fmt.Errorf("admin_auth: %w", err)
		}
		o.Method = out.methods.Of(signInName)
	}
	o.Source, o.Ambient, o.Content = out.deployment, who.TrustedHeader != nil, c.AdminContent == config.On
	out.handler = operator.New(o)
	return out, nil
}

// signInName names the only thing that operators sign in to.
const signInName = "admin"

// signIn makes the ways in which operators sign in, as if they called an upstream.
func signIn(a config.Auth, public string, log *slog.Logger) (*auth.Methods, error) {
	c := config.Config{Auth: a, PublicURL: public, Upstreams: []*config.Upstream{config.NewUpstream(signInName, "")}}
	return auth.New(&c, auth.Options{Logger: log})
}

// sayConsole logs the address of the console. A token goes only to plain, the log of the terminal, so that
// systems that collect logs miss it: its holder can cancel everybody's tasks.
func (o *operators) sayConsole(address string, log, plain *slog.Logger) {
	at := "http://" + address + "/console/"
	switch {
	case o.token != "":
		plain.Info("the console for operators; the link opens it once, and is good for TASKGATE_ADMIN as long as this process lives", "at", at+"#token="+o.token)
	case o.methods != nil:
		log.Info("the console for operators", "at", at)
	default:
		log.Info("the console for operators is off: it needs admin_auth, or an admin address on loopback")
	}
}

// heldAt is what clients have at a gateway, besides tasks.
func heldAt(g *gateway.Gateway) (all []operator.Held) {
	for share, has := range g.Held() {
		all = append(all, operator.Held{
			Principal: share.Owner, Address: share.Address,
			Holdings: operator.Holdings{Sessions: has.Sessions, Streams: has.Streams, Calls: has.Calls},
		})
	}
	return all
}
