-- Provides waiter_of(owner): the waiter in an owner's name. With several masters, each
-- attempt of one wait has a name of its own, <waiter>~<number>. The hold that a releaser
-- gives has a `~`, too. The place in the queue has the waiter's name.
local function waiter_of(owner)
  return string.match(owner, '^[^~]*')
end
