package config

import (
	"fmt"
	"slices"
	"strings"
)

// checkRights checks who may call the tools of an upstream. What a rule takes from the defaults is checked there.
func (p *problems) checkRights(at string, u *Upstream, a Auth) {
	p.toolScopes(at+".defaults.scopes", u.Defaults.Scopes, a)
	p.toolPrincipals(at+".defaults.principals", u.Defaults.Principals, a)
	hide, scoped := u.Defaults.MissingRights == RightsHide, u.Defaults.Scopes != ""
	for i := range u.Tools {
		rule, at := &u.Tools[i], fmt.Sprintf("%s.tools[%d]", at, i)
		if rule.Match.UsesHints() {
			hintedRights(p, at, rule, u.Defaults)
			continue
		}
		if rule.Scopes != u.Defaults.Scopes {
			p.toolScopes(at+".scopes", rule.Scopes, a)
		}
		if !slices.Equal(rule.Principals, u.Defaults.Principals) {
			p.toolPrincipals(at+".principals", rule.Principals, a)
		}
		if rule.MissingRights == RightsHide && !hide && rule.Scopes == "" {
			p.addKey(at+".missing_rights", "%s", needsScopes)
		}
		scoped = scoped || rule.Scopes != ""
	}
	if hide && !scoped {
		p.addKey(at+".defaults.missing_rights", "%s", needsScopes)
	}
}

// hintedRights refuses rights in a rule by annotations.
func hintedRights(p *problems, at string, rule *Rule, defaults Tool) {
	const chooses = "not beside a match by annotations: the server would choose who may call. Name the tools"
	switch {
	case rule.Scopes != defaults.Scopes:
		p.addKey(at+".scopes", chooses)
	case !slices.Equal(rule.Principals, defaults.Principals):
		p.addKey(at+".principals", chooses)
	case rule.MissingRights != defaults.MissingRights:
		p.addKey(at+".missing_rights", chooses)
	}
}

const needsScopes = "means nothing without scopes: a tool with principals is hidden from all others in any case"

// toolScopes checks the scopes of a tool, which only tokens have.
func (p *problems) toolScopes(at string, scopes string, a Auth) {
	if scopes == "" {
		return
	}
	if a.JWT == nil {
		p.addKey(at, "means nothing without auth by jwt: no other caller has scopes")
	}
	for scope := range strings.SplitSeq(scopes, " ") {
		if !isScope(scope) {
			p.add(at, "not scopes with one space between")
			return
		}
	}
}

// toolPrincipals checks the principals of a tool: whether somebody who signs in as configured can be each of them.
func (p *problems) toolPrincipals(list string, principals []string, a Auth) {
	if len(principals) > 0 && !a.Required() {
		p.addKey(list, "means nothing without auth: nobody signs in, so the tool would be hidden from everybody")
		return
	}
	for i, name := range principals {
		at := fmt.Sprintf("%s[%d]", list, i)
		claim, value, isClaim := strings.Cut(name, "=")
		switch first := slices.Index(principals, name); {
		case name == "":
			p.add(at, "is empty")
		case first < i:
			p.add(at, "this principal is already that of entry %d", first)
		case (a.JWT != nil || a.Passthrough != nil) && (!isClaim || claim == "" || value == ""):
			p.add(at, "callers have tokens here: write CLAIM=VALUE, such as sub=alice or groups=admins")
		case len(a.Keys) > 0 && !slices.ContainsFunc(a.Keys, func(k BearerKey) bool { of, _ := k.Parts(); return of == name }):
			p.add(at, "no key is of this principal")
		}
	}
}
